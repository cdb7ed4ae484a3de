// Zoom, search and tooltips of a flame graph that stands alone in an SVG file.
// Names are read from attributes and text nodes only; nothing is ever built from them as markup.
"use strict";
(() => {
  const root = document.documentElement;
  const width = Number(root.dataset.width);
  const charWidth = 7.3;
  const frames = Array.from(document.querySelectorAll("g.f"), (node) => ({
    node,
    rect: node.querySelector("rect"),
    label: node.querySelector("text"),
    name: node.dataset.n,
    start: Number(node.dataset.x),
    span: Number(node.dataset.w),
    depth: Number(node.dataset.d),
  }));
  const total = frames[0].span;
  const details = document.getElementById("details");
  const matched = document.getElementById("matched");
  const reset = document.getElementById("reset");
  const find = document.getElementById("find");

  function fit(frame, pixels) {
    const room = Math.floor((pixels - 4) / charWidth);
    if (room < 3) frame.label.textContent = "";
    else if (frame.name.length <= room) frame.label.textContent = frame.name;
    else frame.label.textContent = frame.name.slice(0, room - 1) + "…";
  }

  function zoom(target) {
    const end = target.start + target.span;
    const scale = width / target.span;
    for (const frame of frames) {
      const ancestor = frame.depth < target.depth && frame.start <= target.start
        && frame.start + frame.span >= end;
      const inside = frame.depth >= target.depth && frame.start >= target.start
        && frame.start + frame.span <= end;
      const pixels = ancestor ? width : frame.span * scale;
      const shown = ancestor || (inside && pixels >= 0.1);
      frame.node.style.display = shown ? "" : "none";
      if (!shown) continue;
      frame.node.classList.toggle("faded", ancestor);
      const x = ancestor ? 0 : (frame.start - target.start) * scale;
      frame.rect.setAttribute("x", x.toFixed(2));
      frame.rect.setAttribute("width", pixels.toFixed(2));
      frame.label.setAttribute("x", (x + 2).toFixed(2));
      fit(frame, pixels);
    }
    reset.style.display = target === frames[0] ? "none" : "";
  }

  // The share of all samples with a match anywhere in their stack: nested matches count once.
  function search(text) {
    let test = null;
    if (text) {
      let pattern = null;
      try {
        pattern = new RegExp(text, "i");
      } catch {
        pattern = null; // not an expression: the plain text is meant
      }
      const plain = text.toLowerCase();
      test = pattern ? (name) => pattern.test(name) : (name) => name.toLowerCase().includes(plain);
    }
    const spans = [];
    for (const frame of frames) {
      const hit = test !== null && frame.depth > 0 && test(frame.name);
      frame.node.classList.toggle("hit", hit);
      if (hit) spans.push([frame.start, frame.start + frame.span]);
    }
    spans.sort((a, b) => a[0] - b[0] || b[1] - a[1]);
    let sum = 0;
    let reached = 0;
    for (const [start, end] of spans) {
      if (end <= reached) continue;
      sum += end - Math.max(start, reached);
      reached = end;
    }
    matched.textContent = test ? `matched: ${((100 * sum) / total).toFixed(1)} %` : "";
  }

  for (const frame of frames) {
    frame.node.addEventListener("click", () => zoom(frame));
    frame.node.addEventListener("keydown", (event) => {
      if (event.key === "Enter") zoom(frame);
    });
    frame.node.addEventListener("mouseover", () => {
      details.textContent = frame.node.querySelector("title").textContent;
    });
  }
  const ask = () => {
    const text = window.prompt("Search (regular expression, empty = clear)", "");
    if (text !== null) search(text);
  };
  reset.addEventListener("click", () => zoom(frames[0]));
  find.addEventListener("click", ask);
  window.addEventListener("keydown", (event) => {
    if (event.key === "Escape") zoom(frames[0]);
    if (event.key === "f" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      ask();
    }
  });
  zoom(frames[0]);
})();
