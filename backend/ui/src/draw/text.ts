/** Fitting labels into boxes. Measuring a whole label costs more than drawing it, so widths are kept per character. */

export class TextFitter {
  private readonly widths = new Map<string, number>();
  private readonly measure: (text: string) => number;

  /** `measure`: width of a text in pixels in the font of the labels. */
  constructor(measure: (text: string) => number) {
    this.measure = measure;
  }

  private width(character: string): number {
    let found = this.widths.get(character);
    if (found === undefined) {
      found = this.measure(character);
      this.widths.set(character, found);
    }
    return found;
  }

  /** As much of the text as fits, with `…` where it was cut; "" if not even that is worth drawing. */
  fit(text: string, room: number, keep: "head" | "tail"): string {
    let used = 0;
    const characters = Array.from(text.slice(0, 2048));
    const ellipsis = this.width("…");
    let fitting = 0;
    for (let i = 0; i < characters.length; i++) {
      used += this.width(characters[keep === "head" ? i : characters.length - 1 - i]!);
      if (used + ellipsis <= room) fitting = i + 1;
      if (used > room) {
        if (fitting < 2) return "";
        return keep === "head"
          ? `${characters.slice(0, fitting).join("")}…`
          : `…${characters.slice(characters.length - fitting).join("")}`;
      }
    }
    return text;
  }
}
