/** A button that opens a panel below itself; Escape or a click elsewhere closes it. */
import { type ReactNode, useEffect, useId, useRef, useState } from "react";
import { Icon } from "./icons";

interface Props {
  label: ReactNode;
  /** What the button is for, where its text alone does not say. */
  title?: string;
  className?: string;
  align?: "left" | "right";
  caret?: boolean;
  children: (close: () => void) => ReactNode;
}

export function Popover({
  label,
  title,
  className,
  align = "left",
  caret = true,
  children,
}: Props): ReactNode {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const id = useId();
  const close = (): void => {
    setOpen(false);
    button.current?.focus();
  };
  useEffect(() => {
    if (!open) return;
    const outside = (event: PointerEvent): void => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", outside);
    return () => removeEventListener("pointerdown", outside);
  }, [open]);
  return (
    <div
      ref={box}
      className="popover"
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !open) return;
        event.stopPropagation();
        close();
      }}
    >
      <button
        ref={button}
        type="button"
        className={`button ${className ?? ""}`}
        aria-expanded={open}
        aria-controls={open ? id : undefined}
        aria-label={title}
        title={title}
        onClick={() => setOpen(!open)}
      >
        {label}
        {caret && <Icon name="down" />}
      </button>
      {open && (
        <div id={id} className={`panel ${align}`}>
          {children(close)}
        </div>
      )}
    </div>
  );
}

interface SegmentsProps<T extends string> {
  label: string;
  value: T;
  choices: readonly (readonly [value: T, title: string, hint?: string])[];
  onChange: (value: T) => void;
}

/** A few choices side by side. */
export function Segments<T extends string>({ label, value, choices, onChange }: SegmentsProps<T>): ReactNode {
  return (
    <div className="segments" role="group" aria-label={label}>
      {choices.map(([choice, title, hint]) => (
        <button
          key={choice}
          type="button"
          aria-pressed={choice === value}
          title={hint}
          onClick={() => onChange(choice)}
        >
          {title}
        </button>
      ))}
    </div>
  );
}
