import { describe, expect, it } from "vitest";
import { type Fingers, pinched } from "../src/core/pinch";

const at = (...xs: [number, number]): Fingers => [
  { x: xs[0], y: 100 },
  { x: xs[1], y: 100 },
];
const WHOLE = { from: 0, to: 1 };

describe("pinched", () => {
  it("keeps what is under the fingers under them", () => {
    const view = pinched(WHOLE, at(400, 600), at(300, 700), 1000, 1e-7);
    expect(view.to - view.from).toBeCloseTo(0.5);
    const under = (x: number): number => view.from + (x / 1000) * (view.to - view.from);
    expect(under(300)).toBeCloseTo(0.4);
    expect(under(700)).toBeCloseTo(0.6);
  });

  it("moves when both move", () => {
    const view = pinched({ from: 0.25, to: 0.75 }, at(400, 600), at(500, 700), 1000, 1e-7);
    expect(view.from).toBeCloseTo(0.2);
    expect(view.to).toBeCloseTo(0.7);
  });

  it("stays inside, and ends somewhere", () => {
    expect(pinched(WHOLE, at(400, 600), at(480, 520), 1000, 1e-7)).toEqual(WHOLE);
    expect(pinched({ from: 0, to: 0.5 }, at(100, 300), at(600, 800), 1000, 1e-7).from).toBe(0);
    const near = pinched(WHOLE, at(500, 500), at(0, 1000), 1000, 0.1);
    expect(near.to - near.from).toBeCloseTo(0.1);
  });
});
