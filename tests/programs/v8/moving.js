"use strict";
// Functions that come and go while the collector moves everything: those of a generation call only each other, from level 5 down
// to level 0, and each is called gGENERATION_LEVEL.
const { ready, burn } = require("./burning.js");
const LEVELS = 5;
const kept = [];

function make(generation) {
  let text = "";
  for (let level = 0; level <= LEVELS; level++) {
    const body = level ? `return g${generation}_${level - 1}(burn, n + 1);` : "return burn(200 + n);";
    text += `function g${generation}_${level}(burn, n) {\n  ${body}\n}\n`;
  }
  return new Function(`${text}return g${generation}_${LEVELS};`)();
}

function garbage(n) {
  const objects = [];
  for (let i = 0; i < n; i++) {
    objects.push({ text: `text ${i}`, list: [i, i + 1] });
  }
  return objects;
}

ready();
for (let generation = 0; ; generation++) {
  const entry = make(generation);
  kept[generation % 40] = [entry, garbage(500)];
  for (let i = 0; i < 2000; i++) {
    entry(burn, i % 7);
  }
}
