/**
 * Just enough of the protobuf wire format to read pprof: varints, lengths, nesting by sub-ranges.
 * Every read is bounded by the message; what does not fit throws MalformedInput. Source: protobuf.dev, "Encoding".
 */
import { MalformedInput } from "./model";

export class Reader {
  private at: number;

  constructor(
    private readonly data: Uint8Array,
    start = 0,
    private readonly stop = data.length,
  ) {
    this.at = start;
  }

  get done(): boolean {
    return this.at >= this.stop;
  }

  /** The next field: its number and wire type. */
  tag(): [field: number, wire: number] {
    const key = this.varint();
    const field = Math.floor(key / 8);
    if (field < 1) throw new MalformedInput(`there is no field ${field} in protobuf (byte ${this.at})`);
    return [field, key % 8];
  }

  /** An unsigned varint. Above 2^53 the lowest bits are lost: values are amounts, not keys. */
  varint(): number {
    const value = this.signed();
    return value < 0 ? value + 2 ** 64 : value;
  }

  /** An int64: two's complement in ten bytes. */
  signed(): number {
    let value = 0;
    // The complement is summed up as well: small negative numbers are near 2^64, where doubles are coarse.
    let complement = 0;
    let scale = 1;
    for (let i = 0; i < 10; i++) {
      if (this.at >= this.stop) throw new MalformedInput("the file ends inside a number");
      const byte = this.data[this.at++]!;
      value += (byte & 0x7f) * scale;
      complement += (~byte & (i < 9 ? 0x7f : 1)) * scale;
      if (byte < 0x80) return i === 9 && byte & 1 ? -(complement + 1) : value;
      scale *= 128;
    }
    throw new MalformedInput(`a number is longer than 10 bytes (byte ${this.at})`);
  }

  /** A length-delimited field as a reader of its own. */
  nested(): Reader {
    const [start, end] = this.range();
    return new Reader(this.data, start, end);
  }

  bytes(): Uint8Array {
    const [start, end] = this.range();
    return this.data.subarray(start, end);
  }

  private range(): [number, number] {
    const length = this.varint();
    const start = this.at;
    if (length > this.stop - start)
      throw new MalformedInput(`a field of ${length} bytes does not fit (byte ${start})`);
    this.at = start + length;
    return [start, this.at];
  }

  /** Numbers of a repeated field, packed or not. */
  numbers(wire: number, into: number[], most: number): void {
    if (wire === 2) {
      const packed = this.nested();
      while (!packed.done && into.length < most) into.push(packed.signed());
    } else if (wire === 0) {
      const value = this.signed();
      if (into.length < most) into.push(value);
    } else this.skip(wire);
  }

  skip(wire: number): void {
    if (wire === 0) this.varint();
    else if (wire === 2) this.range();
    else if (wire === 1 || wire === 5) {
      this.at += wire === 1 ? 8 : 4;
      if (this.at > this.stop) throw new MalformedInput("the file ends inside a number");
    } else throw new MalformedInput(`wire type ${wire} is not used by pprof (byte ${this.at})`);
  }
}
