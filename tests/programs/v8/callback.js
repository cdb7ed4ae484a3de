"use strict";
// Truth: ... > (module)@start > main@map > ?map > mapped@sort > ?sort > compare@replace > ?replace > replacer@script > ... > ~(script)@script1 > inner@burn > burn
const vm = require("vm");
const { ready, burn } = require("./burning.js");

const inner = (global.inner = function inner() {
  return burn(20000); // @burn
});
const script = new vm.Script("// first\ninner(); // @script1", { filename: "inner.vm" });
const context = vm.createContext({ inner });

function replacer(text) {
  script.runInContext(context); // @script
  return text;
}

function compare(a, b) {
  "a-b".replace(/-/, replacer); // @replace
  return a - b;
}

function mapped(n) {
  return [n, 1].sort(compare)[0]; // @sort
}

function main() {
  ready();
  for (;;) {
    [1, 2].map(mapped); // @map
  }
}

main(); // @start
