/** A scrolling list of rows of one height, of which only the visible ones exist. */
import { type ReactNode, useEffect, useRef, useState } from "react";
import { useSize } from "../state/use_size";

interface Props {
  count: number;
  rowHeight: number;
  /** Stays on top while the rows scroll. */
  header: ReactNode;
  label: string;
  columns: number;
  /** `top`: where the row lies, px. */
  row: (index: number, top: number) => ReactNode;
  className?: string;
  /** Scrolled to its beginning when this changes. */
  resetKey: string;
  /** A row that is to be seen; -1 = none. */
  reveal?: number;
}

const SPARE = 6;

export function VirtualRows({
  count,
  rowHeight,
  header,
  label,
  columns,
  row,
  className,
  resetKey,
  reveal = -1,
}: Props): ReactNode {
  const scroller = useRef<HTMLDivElement>(null);
  const { height } = useSize(scroller);
  const [top, setTop] = useState(0);
  useEffect(() => {
    if (scroller.current) scroller.current.scrollTop = 0;
  }, [resetKey]);
  useEffect(() => {
    const box = scroller.current;
    if (!box || reveal < 0) return;
    const at = reveal * rowHeight;
    const room = box.clientHeight - 2 * rowHeight;
    if (at < box.scrollTop || at > box.scrollTop + room) box.scrollTop = Math.max(0, at - room / 2);
  }, [reveal, rowHeight]);
  const first = Math.max(0, Math.floor(top / rowHeight) - SPARE);
  const last = Math.min(count, Math.ceil((top + height) / rowHeight) + SPARE);
  const rows: ReactNode[] = [];
  for (let i = first; i < last; i++) rows.push(row(i, i * rowHeight));
  return (
    <div
      ref={scroller}
      className={`rows ${className ?? ""}`}
      role="table"
      aria-label={label}
      aria-rowcount={count + 1}
      aria-colcount={columns}
      tabIndex={0}
      onScroll={(event) => setTop(event.currentTarget.scrollTop)}
    >
      <div role="rowgroup" className="rows-head">
        {header}
      </div>
      <div role="rowgroup" className="rows-body" style={{ height: count * rowHeight }}>
        {rows}
      </div>
    </div>
  );
}
