"use strict";
// bounded.js FILE: like the truth programs, but it ends when the file is there, so that V8 writes its own profile.
const { ready, burn } = require("./burning.js");
const { existsSync } = require("fs");

function left(n) {
  return burn(20000) + n;
}

function right(n) {
  return left(n) + burn(10000);
}

class Tree {
  grow(depth) {
    return depth ? this.grow(depth - 1) : right(depth);
  }
}

const apply = (value) => [value].map((n) => left(n))[0];

ready();
const tree = new Tree();
while (!existsSync(process.argv[2])) {
  tree.grow(6);
  apply(1);
}
