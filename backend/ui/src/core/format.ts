/** Numbers as people read them. Pure; all texts in English, without locale, so that tests and screenshots agree. */
import type { Unit } from "./model";

const grouped = (text: string): string => text.replace(/\B(?=(\d{3})+(?!\d))/g, ",");

/** `0.10 seconds`, `< 0.01 seconds`, `1,234.50 seconds`: one unit for a whole column, so that rows compare. */
export function seconds(ns: number): string {
  if (ns === 0) return "0 seconds";
  const sign = ns < 0 ? "-" : "";
  const value = Math.abs(ns) / 1e9;
  if (value < 0.01) return sign ? "> -0.01 seconds" : "< 0.01 seconds";
  const [whole, fraction] = value.toFixed(2).split(".");
  return `${sign}${grouped(whole!)}.${fraction} seconds`;
}

/** `1.5 MiB`, `12 B`. */
export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let size = Math.abs(value);
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) {
    size /= 1024;
    unit++;
  }
  const digits = unit === 0 ? String(Math.round(size)) : size.toFixed(size < 10 ? 2 : 1);
  return `${value < 0 ? "-" : ""}${digits} ${units[unit]}`;
}

/** `1,234`. */
export function count(value: number): string {
  return `${value < 0 ? "-" : ""}${grouped(Math.abs(Math.round(value)).toString())}`;
}

/** A value of a profile in its unit, for tables and tooltips. */
export function amount(value: number, unit: Unit): string {
  if (unit === "nanoseconds") return seconds(value);
  if (unit === "bytes") return bytes(value);
  return unit === "count" || unit === "" ? count(value) : `${count(value)} ${unit}`;
}

/** `12.3 %`, `< 0.1 %`; "–" if there is nothing to be a share of. */
export function share(part: number, whole: number): string {
  if (!(whole > 0)) return "–";
  const percent = (100 * part) / whole;
  if (percent === 0) return "0 %";
  if (Math.abs(percent) < 0.1) return percent < 0 ? "> -0.1 %" : "< 0.1 %";
  return `${percent.toFixed(percent >= 99.95 ? 0 : 1)} %`;
}

/** A change of shares in percentage points: `+1.2 pp`, `-0.3 pp`, `±0`. */
export function points(change: number): string {
  const value = 100 * change;
  if (Math.abs(value) < 0.005) return "±0";
  return `${value > 0 ? "+" : "-"}${Math.abs(value).toFixed(Math.abs(value) < 0.1 ? 2 : 1)} pp`;
}

/** A short span: `2 h`, `15 min`, `90 s`, `1 d 2 h`. */
export function span(ms: number): string {
  const parts: [number, string][] = [
    [86_400_000, "d"],
    [3_600_000, "h"],
    [60_000, "min"],
    [1000, "s"],
  ];
  const out: string[] = [];
  let rest = Math.max(0, Math.round(ms / 1000) * 1000);
  for (const [size, name] of parts) {
    const whole = Math.floor(rest / size);
    if (whole > 0 && out.length < 2) out.push(`${whole} ${name}`);
    rest -= whole * size;
  }
  return out.join(" ") || `${Math.round(ms)} ms`;
}

const two = (value: number): string => String(value).padStart(2, "0");

/** `14:05:09`, local time. */
export function clock(ms: number): string {
  const date = new Date(ms);
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** `2026-11-21 14:05:09`, local time. */
export function moment(ms: number): string {
  const date = new Date(ms);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock(ms)}`;
}

/** The last part of a path: `/usr/lib/libc.so.6` → `libc.so.6`. */
export function basename(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1) || path;
}

/** `main.c:12`, `main.c`, or "". */
export function position(file: string, line: number): string {
  return file === "" ? "" : line > 0 ? `${file}:${line}` : file;
}
