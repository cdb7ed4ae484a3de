/** Takes files that are dropped anywhere on the page. */
import { type ReactNode, useEffect, useState } from "react";

export function FileDrop({ onFile }: { onFile: (file: File) => void }): ReactNode {
  const [over, setOver] = useState(false);
  useEffect(() => {
    const hasFile = (event: DragEvent): boolean => event.dataTransfer?.types.includes("Files") ?? false;
    const onOver = (event: DragEvent): void => {
      if (!hasFile(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const onLeave = (event: DragEvent): void => {
      if (event.relatedTarget === null) setOver(false);
    };
    const onDrop = (event: DragEvent): void => {
      if (!hasFile(event)) return;
      event.preventDefault();
      setOver(false);
      const file = event.dataTransfer?.files[0];
      if (file) onFile(file);
    };
    addEventListener("dragover", onOver);
    addEventListener("dragleave", onLeave);
    addEventListener("drop", onDrop);
    return () => {
      removeEventListener("dragover", onOver);
      removeEventListener("dragleave", onLeave);
      removeEventListener("drop", onDrop);
    };
  }, [onFile]);
  if (!over) return null;
  return (
    <div className="drop">
      <p>
        Drop a pprof or speedscope file
        <span>It is read in this browser; nothing is uploaded</span>
      </p>
    </div>
  );
}
