"use strict";
// Truth: ... > waiter@next > ?next > generated@inner > ?next > deeper@burn > burn
// Truth: ... > waiter@then > sync@sync > burn
// Truth: ... > (module)@wait > waiter
// Truth: ... > waiter@timer > ... > (anonymous)@timer > ...
const { ready, burn } = require("./burning.js");

function* deeper() {
  for (;;) {
    yield burn(20000); // @burn
  }
}

function* generated() {
  const inner = deeper();
  for (;;) {
    yield inner.next().value; // @inner
  }
}

function sync() {
  return burn(20000); // @sync
}

async function waiter() {
  const generator = generated();
  for (let round = 0; ; round++) {
    generator.next(); // @next
    await null;
    sync(); // @then
    if (round % 64 === 0) {
      await new Promise((done) => setImmediate(done)); // @timer
    }
  }
}

ready();
waiter(); // @wait
