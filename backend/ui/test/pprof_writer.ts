/** Writes pprof messages, so that tests can say exactly what is in a file. Field numbers: profile.proto. */

function varint(value: number): number[] {
  const out: number[] = [];
  let rest = BigInt.asUintN(64, BigInt(value));
  do {
    const low = Number(rest & 0x7fn);
    rest >>= 7n;
    out.push(rest > 0n ? low | 0x80 : low);
  } while (rest > 0n);
  return out;
}

export const int = (field: number, value: number): number[] => [...varint(field * 8), ...varint(value)];

export const message = (field: number, ...parts: number[][]): number[] => {
  const body = parts.flat();
  return [...varint(field * 8 + 2), ...varint(body.length), ...body];
};

export const packed = (field: number, values: number[]): number[] =>
  message(field, ...values.map((value) => varint(value)));

export const text = (field: number, value: string): number[] =>
  message(field, Array.from(new TextEncoder().encode(value)));

export interface Plan {
  types: [type: string, unit: string][];
  /** Leaf first, as pprof has it; a location may hold several inlined lines, innermost first. */
  samples: { stack: number[]; values: number[] }[];
  locations: {
    id: number;
    mapping?: number;
    address?: number;
    lines: [functionId: number, line: number][];
  }[];
  functions: { id: number; name: string; file?: string; line?: number }[];
  mappings?: { id: number; file: string }[];
}

export function pprof(plan: Plan): Uint8Array<ArrayBuffer> {
  const strings = [""];
  const index = (value: string): number => {
    const known = strings.indexOf(value);
    return known >= 0 ? known : strings.push(value) - 1;
  };
  const parts = [
    ...plan.types.map(([type, unit]) => message(1, int(1, index(type)), int(2, index(unit)))),
    ...plan.samples.map(({ stack, values }) => message(2, packed(1, stack), packed(2, values))),
    ...(plan.mappings ?? []).map(({ id, file }) => message(3, int(1, id), int(5, index(file)))),
    ...plan.locations.map(({ id, mapping = 0, address = 0, lines }) =>
      message(
        4,
        int(1, id),
        int(2, mapping),
        int(3, address),
        ...lines.map(([fn, line]) => message(4, int(1, fn), int(2, line))),
      ),
    ),
    ...plan.functions.map(({ id, name, file = "", line = 0 }) =>
      message(5, int(1, id), int(2, index(name)), int(4, index(file)), int(5, line)),
    ),
  ];
  return Uint8Array.from([...parts, ...strings.map((value) => text(6, value))].flat());
}

export async function gzip(data: Uint8Array<ArrayBuffer>): Promise<ArrayBuffer> {
  return new Response(new Blob([data]).stream().pipeThrough(new CompressionStream("gzip"))).arrayBuffer();
}
