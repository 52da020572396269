//! The real platform passes all conformance checks.

use lockstep_platform::{ScratchDir, conformance, real};

#[test]
fn the_real_world_passes_every_check() {
    let world = real();
    for check in conformance::checks() {
        // A fresh folder for each check, and the name first, to identify a failing one.
        println!("{}", check.name);
        let scratch = ScratchDir::new(&world, "conformance").expect("a scratch folder can be had");
        (check.run)(&world, scratch.path());
    }
}

#[test]
fn every_check_has_a_name_of_its_own() {
    let mut names: Vec<_> = conformance::checks().iter().map(|check| check.name).collect();
    let num_checks = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), num_checks);
    assert!(num_checks > 30);
}
