"use strict";
// Truth: ... > (module)@start > main@main > descend@down*30 > descend@turn > burn
const { ready, burn } = require("./burning.js");

function descend(left) {
  if (left === 0) {
    return burn(20000); // @turn
  }
  return descend(left - 1) + 1; // @down
}

function main() {
  ready();
  for (;;) {
    descend(30); // @main
  }
}

main(); // @start
