"use strict";
// Truth: ... > (module)@start > main@main > guarded@guarded > failing@failing*6 > failing@burn > burn
// Truth: ... > (module)@start > main@main > guarded@handler > handler@handled > burn
// Truth: ... > (module)@start > main@main > guarded@final > burn
const { ready, burn } = require("./burning.js");

function failing(left) {
  if (left === 0) {
    burn(15000); // @burn
    throw new Error("as planned");
  }
  try {
    return failing(left - 1); // @failing
  } finally {
    left += 1;
  }
}

function handler(error) {
  return burn(10000) + error.message.length; // @handled
}

function guarded() {
  try {
    return failing(6); // @guarded
  } catch (error) {
    return handler(error); // @handler
  } finally {
    burn(8000); // @final
  }
}

function main() {
  ready();
  for (;;) {
    guarded(); // @main
  }
}

main(); // @start
