/** What can be done with a frame: the menu on right click, and the same buttons in the details line. */
import { type ReactNode, useEffect, useRef } from "react";
import { Icon } from "./icons";

export type FrameAction = "zoom" | "focus" | "sandwich" | "pick" | "copy";

export const ACTIONS: readonly {
  action: FrameAction;
  title: string;
  icon: Parameters<typeof Icon>[0]["name"];
  keys: string;
}[] = [
  { action: "focus", title: "Focus on subtree", icon: "focus", keys: "f" },
  { action: "sandwich", title: "Callers and callees", icon: "sandwich", keys: "s" },
  { action: "pick", title: "Mark this function", icon: "check", keys: "m" },
  { action: "copy", title: "Copy name", icon: "copy", keys: "c" },
];

interface Props {
  x: number;
  y: number;
  name: string;
  onAction: (action: FrameAction) => void;
  onClose: () => void;
}

export function FrameMenu({ x, y, name, onAction, onClose }: Props): ReactNode {
  const menu = useRef<HTMLDivElement>(null);
  useEffect(() => {
    menu.current?.querySelector("button")?.focus();
    const outside = (event: PointerEvent): void => {
      if (!menu.current?.contains(event.target as Node)) onClose();
    };
    // From anywhere, before anybody else: a touch takes the focus out of the menu.
    const escape = (event: KeyboardEvent): void => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      onClose();
    };
    addEventListener("keydown", escape, true);
    addEventListener("pointerdown", outside);
    addEventListener("blur", onClose);
    return () => {
      removeEventListener("keydown", escape, true);
      removeEventListener("pointerdown", outside);
      removeEventListener("blur", onClose);
    };
  }, [onClose]);
  const onKey = (event: React.KeyboardEvent): void => {
    const buttons = [...(menu.current?.querySelectorAll("button") ?? [])];
    const at = buttons.indexOf(document.activeElement as HTMLButtonElement);
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step) buttons[(at + step + buttons.length) % buttons.length]?.focus();
    else if (event.key === "Tab") onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const place = { left: Math.min(x, innerWidth - 250), top: Math.min(y, innerHeight - 180) };
  return (
    <div
      ref={menu}
      className="menu frame-menu"
      role="menu"
      aria-label={`Actions for ${name}`}
      style={place}
      onKeyDown={onKey}
    >
      <div className="menu-title" aria-hidden="true">
        {name}
      </div>
      {ACTIONS.map(({ action, title, icon, keys }) => (
        <button
          key={action}
          type="button"
          role="menuitem"
          onClick={() => {
            onAction(action);
            onClose();
          }}
        >
          <Icon name={icon} />
          <span>{title}</span>
          <kbd>{keys}</kbd>
        </button>
      ))}
    </div>
  );
}
