//! Stability of descent with delayed gradients: its limits, and the recurrence itself.

use crate::common::check;
use lockstep_planner::stability::{Descent, limit};
use std::collections::VecDeque;
use std::f64::consts::PI;

/// Largest error of the last few of `num_steps` steps of the recurrence.
fn error_after(descent: Descent, curvature: f64, num_steps: usize) -> f64 {
    let (mut x, mut velocity) = (1.0_f64, 0.0);
    let mut past: VecDeque<f64> = vec![x; descent.delay as usize + 1].into();
    let mut recent = VecDeque::new();
    for _ in 0..num_steps {
        let delayed = past.pop_front().expect("there is always one");
        velocity = descent.momentum * velocity + curvature * delayed;
        x -= descent.lr * velocity;
        past.push_back(x);
        recent.push_back(if x.is_nan() { f64::INFINITY } else { x.abs() });
        if recent.len() > 20 * (descent.delay as usize + 2) {
            recent.pop_front();
        }
    }
    recent.into_iter().fold(0.0, f64::max)
}

#[test]
fn without_momentum_the_limit_is_a_sine() {
    for (delay, expected) in
        [(0, "2.0000"), (1, "1.0000"), (2, "0.61803"), (5, "0.28463"), (10, "0.14946")]
    {
        check!(limit(delay, 0.0), expected);
    }
    for (delay, expected) in [(1, "1.000"), (2, "0.618"), (5, "0.2846"), (10, "0.1495")] {
        check!(limit(delay, 0.0), expected);
    }
    for (delay, expected) in [(15, "0.1013"), (20, "0.0766"), (50, "0.0311")] {
        check!(limit(delay, 0.0), expected);
    }
    for delay in 0..200 {
        let sine = 2.0 * (PI / (2.0 * (2.0 * f64::from(delay) + 1.0))).sin();
        assert!((limit(delay, 0.0) - sine).abs() < 1e-13, "delay {delay}");
    }
}

#[test]
fn with_momentum_the_limit_matches_simulation() {
    // Misprint for 5: 0.02151, where the recurrence grows already.
    for (delay, expected) in [(0, "3.80"), (1, "0.1000"), (5, "0.0215"), (10, "0.01139")] {
        check!(limit(delay, 0.9), expected);
    }
    check!(limit(10, 0.5), "0.0696");
    // The rules of thumb 1/τ and (1 − β)/τ are on the safe side.
    for delay in 1..50 {
        assert!(limit(delay, 0.0) >= 1.0 / f64::from(delay) - 1e-12);
        for momentum in [0.0, 0.5, 0.9, 0.99] {
            let thumb = (1.0 - momentum) / f64::from(delay);
            assert!(limit(delay, momentum) >= thumb - 1e-12, "delay {delay}");
        }
    }
}

#[test]
fn the_recurrence_shrinks_below_the_limit_and_grows_above_it() {
    for delay in [0, 1, 2, 3, 5, 10, 20] {
        for momentum in [0.0, 0.3, 0.9] {
            for curvature in [0.5, 40.0] {
                let case = format!("delay {delay}, momentum {momentum}");
                for share in [0.97, 1.03] {
                    let lr = share * limit(delay, momentum) / curvature;
                    let descent = Descent { lr, momentum, delay };
                    let is_stable = share < 1.0;
                    assert_eq!(descent.is_stable(curvature), is_stable, "{case}");
                    let [half, whole] =
                        [15_000, 30_000].map(|n| error_after(descent, curvature, n));
                    // Values that overflowed have grown as well.
                    let has_shrunk = whole < half.max(1e-290) && whole < 1.0;
                    assert_eq!(has_shrunk, is_stable, "{case}, share {share}: {half}, {whole}");
                }
            }
        }
    }
}

#[test]
fn the_largest_root_is_one_at_the_limit_and_the_rate_of_the_recurrence() {
    for delay in [0, 1, 2, 5, 10] {
        for momentum in [0.0, 0.3, 0.9] {
            let at = |share: f64| Descent { lr: share * limit(delay, momentum), momentum, delay };
            let case = format!("delay {delay}, momentum {momentum}");
            assert!((at(1.0).growth(1.0) - 1.0).abs() < 1e-6, "{case}");
            for share in [0.5, 0.9, 0.99] {
                assert!(at(share).growth(1.0) < 1.0, "{case}, share {share}");
                assert!(at(2.0 - share).growth(1.0) > 1.0, "{case}, share {share}");
            }
            let [early, delayed] = [1000, 3000].map(|n| error_after(at(0.97), 1.0, n));
            let measured = ((delayed.ln() - early.ln()) / 2000.0).exp();
            let error = (measured - at(0.97).growth(1.0)).abs();
            assert!(error < 2e-4, "{case}: {measured} is not {}", at(0.97).growth(1.0));
        }
    }
}

#[test]
fn largest_stable_delays_match_simulation() {
    let sgd = |lr: f64| Descent { lr, momentum: 0.0, delay: 0 };
    // Levin and May 1976: x[n+1] = x[n] - a x[n-k] decays for a below 2 cos(k π / (2 k + 1)).
    let bound = |delay: u32| 2.0 * (f64::from(delay) * PI / f64::from(2 * delay + 1)).cos();
    for lr in [0.02, 0.05, 0.1, 0.5] {
        let last = sgd(lr).delay_limit(1.0).expect("fresh gradients converge");
        assert!(bound(last) > lr && bound(last + 1) <= lr, "rate {lr}: {last}");
        assert!(Descent { delay: last, ..sgd(lr) }.is_stable(1.0));
        assert!(!Descent { delay: last + 1, ..sgd(lr) }.is_stable(1.0));
    }
    assert_eq!(sgd(0.1).delay_limit(1.0), Some(15), "the limit at 15 is 0.1013");
    assert_eq!(sgd(2.0).delay_limit(1.0), None, "at delay 0 the limit is 2");
    assert_eq!(sgd(1.0).delay_limit(1.0), Some(0), "at the limit it does not converge");
    assert!((sgd(0.1).lr_limit(4.0) - 0.5).abs() < 1e-12);
}
