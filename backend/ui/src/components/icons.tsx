/** The few icons, drawn here: 16 × 16, in the colour of the text. */
import type { ReactNode } from "react";

const PATHS = {
  search: "M7 2.5a4.5 4.5 0 1 1 0 9a4.5 4.5 0 0 1 0-9M10.5 10.5L14 14",
  close: "M4 4l8 8M12 4l-8 8",
  down: "M4 6.5l4 4 4-4",
  refresh: "M13 8a5 5 0 1 1-1.6-3.7M13 2v3h-3",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3a5.5 5.5 0 1 0 6.5 6.5z",
  sun: "M8 5a3 3 0 1 1 0 6a3 3 0 0 1 0-6M8 1v1.5M8 13.5V15M1 8h1.5M13.5 8H15M3 3l1 1M12 12l1 1M3 13l1-1M12 4l1-1",
  help: "M6 6a2 2 0 1 1 2.7 1.9c-.5.2-.7.6-.7 1.1v.5M8 12v.5",
  download: "M8 2v8M4.5 7L8 10.5 11.5 7M3 13.5h10",
  open: "M2.5 12.5v-9h4l1.5 2h5.5v7z",
  compare: "M5 2.5L2.5 5 5 7.5M2.5 5H11M11 8.5l2.5 2.5L11 13.5M13.5 11H5",
  link: "M6.5 9.5l3-3M7 4.5l1.2-1.2a3 3 0 0 1 4.3 4.3L11.3 8.8M9 11.5l-1.2 1.2a3 3 0 0 1-4.3-4.3L4.7 7.2",
  focus: "M2.5 5.5v-3h3M10.5 2.5h3v3M13.5 10.5v3h-3M5.5 13.5h-3v-3M6 8h4",
  sandwich: "M2.5 4.5h11M4.5 8h7M2.5 11.5h11",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  plus: "M8 3v10M3 8h10",
  check: "M3 8.5l3.5 3.5L13 4.5",
} as const;

export function Icon({ name }: { name: keyof typeof PATHS }): ReactNode {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

export function Flame(): ReactNode {
  return (
    <svg className="logo" viewBox="0 0 32 32" aria-hidden="true">
      <rect x="2" y="23" width="28" height="6" rx="1.5" className="f1" />
      <rect x="2" y="15" width="19" height="6" rx="1.5" className="f2" />
      <rect x="23" y="15" width="7" height="6" rx="1.5" className="f3" />
      <rect x="6" y="7" width="11" height="6" rx="1.5" className="f3" />
      <rect x="9" y="0.5" width="5" height="4.5" rx="1.2" className="f2" />
    </svg>
  );
}
