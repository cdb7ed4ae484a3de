"use strict";

function deeper(burn) {
  return burn(20000); // @deeper1
}

exports.loaded = function loaded(burn) {
  return deeper(burn); // @loaded1
};
