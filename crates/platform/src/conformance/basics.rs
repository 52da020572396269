//! Conformance checks of clock, entropy and host.

use std::path::Path;
use std::time::Duration;

use super::Row;
use crate::{Deadline, World};

pub(super) const CHECKS: &[Row] = &[
    ("the clock never goes backwards", clock_is_monotonic),
    ("sleeping takes at least the requested time", sleep_is_long_enough),
    ("a deadline passes when its time is over", deadline_passes),
    ("the process age covers every duration measured in it", process_age_grows),
    ("random bytes differ from call to call", entropy_differs),
    ("the host knows its name and its memory", host_knows_itself),
    ("a variable that is not set is none", unset_variable_is_none),
];

fn clock_is_monotonic(world: &World, _dir: &Path) {
    let mut last = world.clock().now();
    for _ in 0..1000 {
        let now = world.clock().now();
        assert!(now >= last, "{now:?} after {last:?}");
        last = now;
    }
    assert!(world.clock().wall() > Duration::ZERO, "the wall clock stands at the epoch");
}

fn sleep_is_long_enough(world: &World, _dir: &Path) {
    let nap = Duration::from_millis(3);
    let start = world.clock().now();
    world.clock().sleep(nap);
    let slept = world.clock().since(start);
    assert!(slept >= nap, "slept {slept:?} instead of {nap:?}");
}

fn deadline_passes(world: &World, _dir: &Path) {
    let clock = world.clock();
    let soon = Deadline::after(clock, Duration::from_millis(2));
    let never = Deadline::after(clock, Duration::MAX);
    assert!(Deadline::after(clock, Duration::ZERO).has_passed(clock));
    clock.sleep(Duration::from_millis(2));
    assert!(soon.has_passed(clock));
    assert!(!never.has_passed(clock));
}

fn process_age_grows(world: &World, _dir: &Path) {
    let start = world.clock().now();
    world.clock().sleep(Duration::from_millis(1));
    let measured = world.clock().since(start);
    assert!(world.clock().process_age() >= measured);
}

fn entropy_differs(world: &World, _dir: &Path) {
    let mut first = [0; 300];
    let mut second = [0; 300];
    world.entropy().fill(&mut first);
    world.entropy().fill(&mut second);
    world.entropy().fill(&mut []);
    assert_ne!(first, second);
    assert!(first[200..].iter().any(|&byte| byte != 0), "the end of the buffer was not filled");
    assert_ne!(world.entropy().u64(), world.entropy().u64());
}

fn host_knows_itself(world: &World, _dir: &Path) {
    let host = world.host();
    assert!(!host.name().is_empty());
    // Read the current size first, so that growth in between cannot reverse the order.
    let current = host.current_rss_bytes();
    let peak = host.peak_rss_bytes();
    assert!(peak >= current, "peak {peak} under current {current}");
    assert!(!host.temp_dir().as_os_str().is_empty());
}

fn unset_variable_is_none(world: &World, _dir: &Path) {
    assert_eq!(world.host().env("LOCKSTEP_NOT_A_VARIABLE"), None);
}
