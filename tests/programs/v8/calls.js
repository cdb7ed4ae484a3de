"use strict";
// Nothing but short calls: many samples fall into prologues, epilogues and builtins without frames.
// Truth: ... > (module)@start > main@fib > fib@left|right* > fib
// Truth: ... > (module)@start > main@walk0 > walk@walk > even@even > odd@odd > leaf
const { ready } = require("./burning.js");

function fib(n) {
  if (n < 2) {
    return n;
  }
  const a = fib(n - 1); // @left
  const b = fib(n - 2); // @right
  return a + b;
}

function leaf(object, n) {
  object["key" + (n & 7)] = n;
  return object.key3;
}

function odd(object, n) {
  return leaf(object, n) + 1; // @odd
}

function even(object, n) {
  return odd(object, n) + 1; // @even
}

function walk(n) {
  const object = { key0: 0, key3: 3 };
  let sum = 0;
  for (let i = 0; i < n; i++) {
    sum += even(object, i); // @walk
  }
  return sum;
}

function main() {
  ready();
  for (;;) {
    fib(20); // @fib
    walk(20000); // @walk0
  }
}

main(); // @start
