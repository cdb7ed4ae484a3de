/**
 * Colours of frames: by runtime, by package, or by how much they changed.
 *
 * All are made in OKLCH, whose lightness is what eyes see as lightness, so that one rule gives labels enough
 * contrast in both themes (a test computes the ratios). Pure: returns `#rrggbb`.
 */

export type Theme = "light" | "dark";

/** sRGB of OKLCH; lightness 0–1, chroma 0–0.4, hue in degrees. Formulas: Björn Ottosson, "Oklab", 2020. */
export function oklch(lightness: number, chroma: number, hue: number): string {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  const hex = linear.map((value) => {
    const bounded = Math.min(1, Math.max(0, value));
    const encoded = bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055;
    return Math.round(255 * encoded)
      .toString(16)
      .padStart(2, "0");
  });
  return `#${hex.join("")}`;
}

/** Contrast of two `#rrggbb` as WCAG 2 defines it, 1–21. */
export function contrast(one: string, other: string): number {
  const luminance = (hex: string): number => {
    const channel = (at: number): number => {
      const value = parseInt(hex.slice(at, at + 2), 16) / 255;
      return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    return 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
  };
  const [high, low] = [luminance(one), luminance(other)].sort((x, y) => y - x) as [number, number];
  return (high + 0.05) / (low + 0.05);
}

/** Runtimes in the order of the legend: hue, chroma factor, and the name that people use. */
export const RUNTIMES: Readonly<Record<string, { title: string; hue: number; chroma: number }>> = {
  kernel: { title: "Kernel", hue: 35, chroma: 1.1 },
  native: { title: "Native", hue: 80, chroma: 1 },
  rust: { title: "Rust", hue: 55, chroma: 0.7 },
  go: { title: "Go", hue: 215, chroma: 1 },
  jvm: { title: "Java (JVM)", hue: 150, chroma: 1 },
  cpython: { title: "Python", hue: 255, chroma: 1 },
  v8js: { title: "JavaScript (V8)", hue: 115, chroma: 1.1 },
  ruby: { title: "Ruby", hue: 12, chroma: 1.2 },
  php: { title: "PHP", hue: 288, chroma: 1 },
  perl: { title: "Perl", hue: 325, chroma: 1 },
  beam: { title: "Erlang (BEAM)", hue: 350, chroma: 1 },
  dotnet: { title: ".NET", hue: 305, chroma: 1.1 },
  luajit: { title: "LuaJIT", hue: 270, chroma: 0.9 },
  "": { title: "Unknown", hue: 80, chroma: 0.08 },
};

/** Kinds come from senders: one that is no kind we know is "Unknown" under its own name. */
function runtimeOf(kind: string): { title: string; hue: number; chroma: number } {
  return Object.hasOwn(RUNTIMES, kind) ? RUNTIMES[kind]! : { ...RUNTIMES[""]!, title: kind };
}

export const runtimeTitle = (kind: string): string => runtimeOf(kind).title;

/** Small steps of lightness, so that neighbours of one runtime stay apart. */
const SHADES = 4;

function fill(theme: Theme, hue: number, chroma: number, shade: number): string {
  return theme === "light"
    ? oklch(0.87 - 0.022 * shade, 0.085 * chroma, hue)
    : oklch(0.47 - 0.024 * shade, 0.078 * chroma, hue);
}

export const LABEL_COLOUR: Readonly<Record<Theme, string>> = { light: "#17181c", dark: "#f6f6f8" };

export function hashText(text: string): number {
  let hash = 2166136261;
  for (let i = 0; i < text.length; i++) hash = Math.imul(hash ^ text.charCodeAt(i), 16777619);
  hash ^= hash >>> 15;
  return hash >>> 0;
}

/** Fill of a frame by its runtime; functions of one runtime differ a little. */
export function runtimeColour(theme: Theme, kind: string, name: string): string {
  const { hue, chroma } = runtimeOf(kind);
  return fill(theme, hue, chroma, hashText(name) % SHADES);
}

/** The colour of a runtime in the legend. */
export function runtimeSwatch(theme: Theme, kind: string): string {
  const { hue, chroma } = runtimeOf(kind);
  return fill(theme, hue, chroma, 1);
}

/** Fill of a package: 24 hues, 15° apart, times two strengths. */
export function packageColour(theme: Theme, name: string): string {
  if (name === "") return fill(theme, 80, 0.08, 1);
  const hash = hashText(name);
  return fill(theme, (hash % 24) * 15, hash & 0x100 ? 1 : 0.65, (hash >>> 10) % 3);
}

/** Colours of series in a timeline by rank: neighbours differ in hue and lightness. */
const SERIES: readonly (readonly [hue: number, lightness: number])[] = [
  [235, 0.62],
  [60, 0.72],
  [160, 0.6],
  [320, 0.68],
  [95, 0.78],
  [280, 0.58],
  [20, 0.64],
  [195, 0.74],
];

export function seriesColour(theme: Theme, rank: number): string {
  const [hue, lightness] = SERIES[rank % SERIES.length]!;
  return oklch(theme === "light" ? lightness : lightness - 0.06, 0.115, hue);
}

/** Steps of the diff scale on each side of "no change". */
export const DIFF_STEPS = 6;

/**
 * Fill for a change: blue for less, orange for more, grey for none; blue and orange stay apart in all common
 * forms of colour blindness, and lightness tells strength as well. `step` is −DIFF_STEPS … DIFF_STEPS.
 */
export function diffColour(theme: Theme, step: number): string {
  const strength = Math.min(1, Math.abs(step) / DIFF_STEPS);
  if (strength === 0) return theme === "light" ? oklch(0.92, 0.004, 260) : oklch(0.36, 0.006, 260);
  const hue = step > 0 ? 60 : 250;
  return theme === "light"
    ? oklch(0.9 - 0.16 * strength, 0.03 + 0.11 * strength, hue)
    : oklch(0.37 + 0.13 * strength, 0.025 + 0.1 * strength, hue);
}

/**
 * The step for a node: its change in relation to its own size, since a small function that doubled matters to
 * whoever looks at it, but never strong for what is small in the whole.
 */
export function diffStep(shareNow: number, shareBefore: number): number {
  const larger = Math.max(shareNow, shareBefore);
  if (larger === 0) return 0;
  const relative = (shareNow - shareBefore) / larger;
  const noticeable = Math.min(1, larger / 0.002);
  return Math.round(DIFF_STEPS * relative * noticeable);
}
