"use strict";
// hostile.js ADDON HOW: an addon that rewrites the frames of its callers while it runs.
const { ready } = require("./burning.js");
const lie = require(process.argv[2]);
const how = Number(process.argv[3]);

function third() {
  lie(how);
}

function second() {
  third();
}

function first() {
  second();
}

ready();
for (;;) {
  first();
}
