"use strict";
// What all truth programs share: they say "ready" once they run, and go on until they are ended.
//
// How to read the `Truth:` lines of the programs: one right answer each, root first. `name@tag` is a frame of that
// function, stopped at a line that ends in `// @tag`, `name@a|b` at one of two; `*n`: n times in a row; `*`: any number of
// times; `~` before it: native code lies between it and its caller; `?`: a function of V8's own, which is not there where
// the optimising compiler has inlined it; `...`: functions of Node.js. `(module)` is a file's own code. The last function
// may be anywhere in its lines, and any beginning of the chain is right as well, its last frame anywhere.
const fs = require("fs");

exports.ready = () => {
  fs.writeSync(1, "ready\n");
};

exports.burn = function burn(rounds) {
  let sum = 0;
  for (let i = 0; i < rounds; i++) {
    sum = (sum * 31 + i) % 1000003;
  }
  return sum;
};
