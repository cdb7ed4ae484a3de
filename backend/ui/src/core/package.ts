/**
 * Which package a function belongs to, from its name, file and mapping, by the habits of its language.
 * A guess where the language has no such notion: then the library that holds the code.
 */
import { basename } from "./format";

/** `github.com/a/b/pkg.(*T).Method` → `github.com/a/b/pkg`; `main.main` → `main`. */
function ofGo(name: string): string {
  const generic = name.indexOf("[");
  const plain = generic >= 0 ? name.slice(0, generic) : name;
  const dot = plain.indexOf(".", plain.lastIndexOf("/") + 1);
  return dot > 0 ? plain.slice(0, dot) : "";
}

/** `java.util.HashMap.get` → `java.util`: the parts before the first that begins with a capital. */
function ofDotted(name: string): string {
  const signature = name.search(/[(<]/);
  const parts = (signature >= 0 ? name.slice(0, signature) : name).split(/[.$/]/);
  const type = parts.findIndex((part) => /^\p{Lu}/u.test(part));
  const end = type > 0 ? type : Math.max(0, parts.length - 2);
  return parts.slice(0, end).join(".");
}

/** What comes before the last `::`, without generics: `tokio::runtime::block_on` → `tokio`. */
function ofRust(name: string): string {
  const first = /^[<&*\s]*(?:dyn |mut |impl )*([A-Za-z_]\w*)::/.exec(name);
  return first?.[1] ?? "";
}

/** `…/site-packages/numpy/core/x.py` → `numpy`; the standard library → its module; else the folder. */
function ofPythonFile(file: string): string {
  const installed = /(?:site|dist)-packages\/([^/]+)/.exec(file);
  if (installed) return installed[1]!.replace(/\.py$/, "");
  const standard = /lib\/python[\d.]+\/([^/]+)/.exec(file);
  if (standard) return standard[1]!.replace(/\.py$/, "");
  return folder(file);
}

/** `…/node_modules/@scope/name/x.js` → `@scope/name`; `node:fs` → `node`. */
function ofNodeFile(file: string): string {
  const installed = /.*node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(file);
  if (installed) return installed[1]!;
  return file.startsWith("node:") ? "node" : folder(file);
}

function folder(file: string): string {
  const parts = file.split("/");
  return parts.length > 1 ? (parts.at(-2) ?? "") : "";
}

/** "" if nothing can be said. */
export function packageOf(name: string, kind: string, file: string, mapping: string): string {
  let found = "";
  switch (kind) {
    case "kernel":
      return mapping === "" || mapping.includes("kernel") ? "kernel" : basename(mapping);
    case "go":
      found = ofGo(name);
      break;
    case "jvm":
    case "dotnet":
      found = ofDotted(name);
      break;
    case "rust":
      found = ofRust(name);
      break;
    case "cpython":
      found = ofPythonFile(file);
      break;
    case "v8js":
      found = ofNodeFile(file);
      break;
    case "ruby":
      found = /\/gems\/([^/]+?)-\d/.exec(file)?.[1] ?? folder(file);
      break;
    case "php":
      found = /\/vendor\/([^/]+\/[^/]+)/.exec(file)?.[1] ?? folder(file);
      break;
    case "perl":
      found = name.includes("::") ? name.slice(0, name.lastIndexOf("::")) : folder(file);
      break;
    case "beam":
      found = /^'?([\w.@]+)'?:/.exec(name)?.[1] ?? "";
      break;
    default:
      break;
  }
  return found || basename(mapping);
}
