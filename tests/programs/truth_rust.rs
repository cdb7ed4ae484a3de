// SPDX-License-Identifier: Apache-2.0
//! Generics, a trait object, a closure and a panic that is caught.
//! Chain: main, outer, Walker<T>::walk, descend::<6> … descend::<0>, burn.
use std::hint::black_box;
use std::io::Write;

#[inline(never)]
fn burn(rounds: u64) -> u64 {
    let mut sum = 0u64;
    for i in 0..rounds {
        sum = black_box(sum.wrapping_add(i));
    }
    sum
}

#[inline(never)]
fn descend<const N: usize>(x: u64, next: &dyn Fn(u64) -> u64) -> u64 {
    let kept = black_box([x; N]);
    next(x).wrapping_add(kept.len() as u64)
}

trait Step {
    fn walk(&self, x: u64) -> u64;
}

struct Walker<T> {
    value: T,
}

impl<T: Copy + Into<u64>> Step for Walker<T> {
    #[inline(never)]
    fn walk(&self, x: u64) -> u64 {
        let start = x.wrapping_add(self.value.into());
        descend::<3>(start, &|a| descend::<2>(a, &|b| descend::<1>(b, &bottom) ^ 1) ^ 2) ^ 3
    }
}

#[inline(never)]
fn bottom(x: u64) -> u64 {
    let sum = burn(100_000);
    if x % 64 == 0 {
        // resume_unwind, unlike panic!, prints nothing.
        std::panic::resume_unwind(Box::new(sum));
    }
    sum
}

#[inline(never)]
fn outer(step: &dyn Step, x: u64) -> u64 {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step.walk(x))).unwrap_or(x)
}

fn main() {
    println!("ready {}", std::process::id());
    std::io::stdout().flush().expect("stdout");
    let step: Box<dyn Step> = Box::new(Walker { value: 7u32 });
    for x in 0.. {
        black_box(outer(step.as_ref(), x));
    }
}
