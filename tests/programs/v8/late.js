"use strict";
// Code that comes while the program runs: eval, new Function, a module that is written and loaded later.
// Truth: ... > (module)@start > main@eval > evaluated@evaluated > burn
// Truth: ... > (module)@start > main@made > (script) > burn
// Truth: ... > (module)@start > main@loaded > loaded@loaded1 > deeper@deeper1 > burn
// Truth: ... > (module)@start > main@fresh0 > fresh@fresh > ... > (module)
const { ready, burn } = require("./burning.js");
const loadedPath = require("path").join(__dirname, "loaded.js");

let round = 0;

function fresh() {
  delete require.cache[loadedPath];
  return require(loadedPath); // @fresh
}

function main() {
  ready();
  for (;;) {
    if (round++ % 50 === 0) {
      // New every time, so that old ones are collected.
      evaluated = (0, eval)("(function evaluated(burn) {\n  return burn(20000); // @evaluated\n})");
      made = new Function("burn", "return burn(20000);");
      library = fresh(); // @fresh0
    }
    evaluated(burn); // @eval
    made(burn); // @made
    library.loaded(burn); // @loaded
  }
}

let evaluated, made, library;
main(); // @start
