"use strict";
// Truth: ... > (module)@start > main@main > work@work > burn
// Truth: ... > (module)@worker > side@side > other@other > burn
const { Worker, isMainThread } = require("worker_threads");
const { ready, burn } = require("./burning.js");

function work() {
  return burn(20000); // @work
}

function other() {
  return burn(20000); // @other
}

function side() {
  for (;;) {
    other(); // @side
  }
}

function main() {
  ready();
  for (;;) {
    work(); // @main
  }
}

if (isMainThread) {
  new Worker(__filename);
  new Worker(__filename);
  main(); // @start
} else {
  side(); // @worker
}
