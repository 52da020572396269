//! Tables against the rates and closed forms of the theory.

use crate::run;
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_lab::Report;
use lockstep_lab::experiments::find;
use lockstep_lab::sim::{CompiledSchedule, Fabric, simulate_collective};
use lockstep_schedule::collective::{GroupSpec, build};
use lockstep_schedule::{Algorithm, Layout, Link, Op};

/// Bound on the distance of `f32` SGD from its limit: weights up to `reach` lose less than an ulp
/// in a step, and forget it at the rate of the step size times the curvature.
fn rounding(reach: f64, rate: f64) -> f64 {
    f64::from(f32::EPSILON) * reach / rate
}

#[test]
fn heterogeneity_bias_grows_with_the_square_of_local_steps() {
    let (lr, spread) = (0.005, 0.5);
    let report = run("heterogeneity-bias", &[], &[], 1);
    let homogeneous = run("heterogeneity-bias", &["spread=0"], &[], 1).rows.numbers("bias");
    let column = |name: &str| report.rows.numbers(name);
    let (tau, bias, expected) = (column("local_steps"), column("bias"), column("expected_bias"));
    for row in 0..tau.len() {
        let reach = expected[row] + lr * tau[row] * (1.0 + spread);
        let tolerance = rounding(reach, lr * (1.0 - spread));
        assert!((bias[row] - expected[row]).abs() <= tolerance, "{row}: {bias:?}, {expected:?}");
        assert!(homogeneous[row] <= tolerance, "{homogeneous:?}");
    }
    // s^2/8 for small steps, to first order in the step size. The exponent of tau is nearer to 2
    // than to 1.
    let (square, linear) = (column("loss_over_square"), column("loss_over_linear"));
    let small = spread * spread / 8.0;
    assert!((square[1] / small - 1.0).abs() < lr * tau[1], "{square:?}");
    assert!((linear[6] / linear[3]).log(tau[6] / tau[3]) > 0.5, "{linear:?}");
    // It also grows with the square of Gamma.
    let gamma = run("heterogeneity-bias", &[], &["gamma=1,2,4"], 1).rows.numbers("expected_loss");
    assert!((gamma[1] / gamma[0] - 4.0).abs() < 1e-9 && (gamma[2] / gamma[0] - 16.0).abs() < 1e-9);
}

#[test]
fn fedavg_converges_to_its_closed_form_and_scaffold_to_the_optimum() {
    // Without noise and with all clients; the flattest direction of the flattest client has a
    // curvature of 0.1.
    let report = run("federated-drift", &["rounds=300", "lr=0.3"], &["local_steps=2,10"], 1);
    let (methods, distance) = (report.rows.texts("method"), report.rows.numbers("distance"));
    let expected = report.rows.numbers("expected_distance");
    let tolerance = rounding(1.0, 0.3 * 0.1);
    for (row, method) in methods.iter().enumerate() {
        match method.as_str() {
            "fedavg" => {
                assert!((distance[row] - expected[row]).abs() < tolerance, "{row}: {distance:?}");
            }
            "scaffold" => assert!(distance[row] < tolerance, "{row}: {distance:?}"),
            _ => {}
        }
    }
}

#[test]
fn speed_up_is_linear_while_noise_dominates() {
    let (dim, runs): (f64, f64) = (8.0, 40.0);
    let report = run("linear-speed-up", &["runs=40", "noise=1"], &["workers=1,2,4"], 1);
    let column = |name: &str| report.rows.numbers(name);
    let (lr, found, expected) = (column("lr"), column("iterations"), column("expected_iterations"));
    for row in 0..lr.len() {
        // Half of the target is noise, whose mean over runs and dimensions fluctuates; the other
        // half falls by twice the step size times the smallest curvature, 1/4, in an iteration.
        let fluctuation = 0.5 * (2.0 / (runs * dim)).sqrt();
        let slope = 0.5 * 2.0 * lr[row] * 0.25;
        let difference = (found[row] - expected[row]).abs();
        assert!(difference <= 5.0 * fluctuation / slope, "{row}: {found:?}, {expected:?}");
    }
    // Linear to first order in the step size, in whole iterations.
    let speed = column("speed_up");
    assert!((speed[2] / 4.0 - 1.0).abs() < lr[2] + 1.0 / expected[2], "{speed:?}");
    let noiseless = run("linear-speed-up", &["noise=0.01"], &["workers=1,64"], 1);
    assert!((noiseless.rows.numbers("speed_up")[1] - 1.0).abs() < 1e-9, "no noise, no speed-up");
}

/// The theory has square and cube roots of the ratio; a measured exponent belongs to the nearest of
/// 0, 1/3, 1/2 and 1.
#[test]
fn best_local_steps_grow_like_a_square_root_or_a_cube_root() {
    let report = run("best-local-steps", &[], &["ratio=4,256"], 1);
    let best = report.rows.numbers("best_tau");
    let power = |first: f64, last: f64| (last / first).log(64.0);
    let (noise, data) = (power(best[0], best[2]), power(best[1], best[3]));
    assert!((5.0 / 12.0..3.0 / 4.0).contains(&noise), "{noise}: {best:?}");
    assert!((1.0 / 6.0..5.0 / 12.0).contains(&data), "{data}: {best:?}");
}

/// Values of a column for one class of problems.
fn ratios(report: &Report, problem: &str, column: &str) -> Vec<f64> {
    let (problems, ratio) = (report.rows.texts("problem"), report.rows.numbers(column));
    ratio.into_iter().zip(problems).filter(|(_, name)| name == problem).map(|(x, _)| x).collect()
}

#[test]
fn local_sgd_beats_mini_batch_sgd_on_quadratics_and_for_few_rounds_on_convex_problems() {
    // Rounds from tau/2 to 4 tau: with noise of 1 the rates are equal at tau rounds.
    for (tau, rounds) in [(4, "2,16"), (16, "8,64")] {
        let params = [&*format!("local_steps={tau}"), "workers=512"];
        let report = run("minibatch-local", &params, &[&format!("rounds={rounds}")], 1);
        let convex = ratios(&report, "convex", "ratio");
        assert!(convex[0] > 1.0 && convex[1] < 1.0, "{tau}, {convex:?}");
        let quadratic = ratios(&report, "quadratic", "ratio");
        assert!(quadratic.iter().all(|ratio| *ratio > 1.0), "{tau}, {quadratic:?}");
    }
}

#[test]
fn ratio_of_mini_batch_and_local_loss_falls_with_the_rounds() {
    let report = run("minibatch-local", &[], &[], 1);
    let falls = |numbers: Vec<f64>| numbers.windows(2).all(|pair| pair[1] < pair[0]);
    assert!(falls(ratios(&report, "convex", "ratio")), "{:?}", report.rows.cells());
    for column in ["local_loss", "minibatch_loss"] {
        for problem in ["convex", "quadratic"] {
            assert!(falls(ratios(&report, problem, column)), "{:?}", report.rows.cells());
        }
    }
}

/// Rates are powers of the rounds: 2/3 for local SGD, 1 for mini-batch SGD. A measured exponent
/// belongs to the nearest of 1/2, 2/3 and 1.
#[test]
fn worst_convex_problem_has_the_rate_of_the_bound() {
    let report = run("minibatch-local", &["workers=4096"], &["rounds=8,64"], 1);
    let power = |column: &str| {
        let losses = ratios(&report, "convex", column);
        (losses[0] / losses[1]).log(8.0)
    };
    let (local, minibatch) = (power("local_loss"), power("minibatch_loss"));
    assert!((7.0 / 12.0..5.0 / 6.0).contains(&local), "{local}");
    assert!(minibatch > 5.0 / 6.0, "{minibatch}");
}

#[test]
fn all_measured_bounds_hold() {
    let report = run("theorems", &[], &["staleness=0,4"], 1);
    let (bounds, measured) = (report.rows.numbers("bound"), report.rows.numbers("measured"));
    for (row, direction) in report.rows.texts("direction").iter().enumerate() {
        let (bound, measured) = (bounds[row], measured[row]);
        // One of the ten theorems has no measurement.
        if report.rows.texts("theorem")[row] == "6 scalability" {
            assert!(measured.is_nan(), "{measured}");
            continue;
        }
        // The last digit of a product may round up; the bisection of theorem 9 ends within 1e-3.
        let holds = match direction.as_str() {
            "at most" => measured <= bound * (1.0 + 1e-3),
            _ => measured >= bound * (1.0 - 1e-12),
        };
        assert!(holds, "{:?}", report.rows.cells()[row]);
    }
    assert_eq!(measured.iter().filter(|measured| measured.is_finite()).count(), 18);
    assert_eq!(report.findings[0], "All 18 measured bounds hold, and none is a prediction");
}

/// The closed form counts all rounds in full. The first and the last part of each tree travel
/// alone, and the root of a power of two has one child: four parts and a round less.
#[test]
fn double_tree_agrees_with_its_closed_form() {
    let (latency, bandwidth) = (10e-6, 50e9);
    for ranks in [8, 12, 24, 64] {
        let params = [&*format!("ranks={ranks}")];
        let rows = run("all-reduce", &params, &["bytes=10kB,1MB,30MB,1GB"], 1).rows;
        let column = |name: &str| rows.numbers(name);
        let (seconds, closed) = (column("seconds"), column("closed_form_seconds"));
        let (bytes, segments) = (column("bytes"), column("segments"));
        for row in (2..seconds.len()).step_by(5) {
            let part = bytes[row] / (2.0 * segments[row] * bandwidth);
            let over = closed[row] - seconds[row];
            let range = -1e-9 * closed[row]..=(4.0 * part + latency) * (1.0 + 1e-9);
            assert!(range.contains(&over), "{ranks}, {row}: {over}, {range:?}");
        }
        let growing = segments.iter().filter(|segments| segments.is_finite());
        assert!(growing.is_sorted() && segments[17] > 10.0 * segments[2], "{segments:?}");
    }
}

/// Off powers of two recursive halving sends the whole vector twice more, and a ring has hundreds
/// of latencies.
#[test]
fn double_tree_is_fastest_for_long_vectors_off_powers_of_two() {
    for (ranks, fastest) in [("ranks=128", "rabenseifner"), ("ranks=192", "double-tree")] {
        let report = run("all-reduce", &[ranks], &["bytes=80MB"], 1);
        assert_eq!(report.findings[0], format!("{fastest} is fastest at bytes = 80 MB"));
    }
}

#[test]
fn number_of_segments_of_a_double_tree_is_the_best() {
    let link = Link { latency: Seconds(10e-6), bandwidth: BytesPerSecond(50e9) };
    let report = run("all-reduce", &["ranks=24"], &["bytes=3MB"], 1);
    let (chosen, found) = (report.rows.numbers("segments")[2], report.rows.numbers("seconds")[2]);
    for segments in [chosen / 2.0, chosen * 2.0].map(|segments| segments as usize) {
        let group = GroupSpec::new(24);
        let schedule = build(Op::AllReduce, Algorithm::DoubleTree { segments }, &group);
        let schedule = schedule.expect("a double tree");
        let layout = Layout::even(&schedule, 750_000);
        let compiled = CompiledSchedule::new(&schedule, &layout, Bytes(4));
        let other = simulate_collective(&compiled, Fabric::Uniform(link), &[0.0; 24]).end;
        assert!(found < other, "{chosen}: {found}, {segments}: {other}");
    }
}

/// Both are sums of the same rounds, with shares of NICs that do not change.
#[test]
fn hierarchical_simulation_equals_its_closed_form() {
    for per_node in [1, 3, 8] {
        // Whole elements for all numbers of nodes: short and long vectors.
        for bytes in [4 * 288, 4 * 288 * 100_000] {
            let params = [&*format!("per_node={per_node}"), &*format!("bytes={bytes}")];
            let rows = run("hierarchical", &params, &["nodes=1,2,3,4"], 1).rows;
            for nic in ["per_rank_nic", "shared_nic"] {
                let column = |name: &str| rows.numbers(&format!("{nic}_{name}"));
                let (simulated, closed) = (column("simulated"), column("seconds"));
                for (simulated, closed) in simulated.iter().zip(&closed) {
                    let error = (simulated - closed).abs();
                    assert!(error <= 1e-9 * closed, "{params:?}, {nic}: {simulated}, {closed}");
                }
            }
        }
    }
}

#[test]
fn skewed_routing_costs_dropped_tokens_and_time() {
    let description = find("moe-routing").expect("it exists").description();
    assert_eq!(description.chart.y[0], "dropped");
    let rows = run("moe-routing", &[], &[], 1).rows;
    let dropped = rows.numbers("dropped");
    assert!(dropped.windows(2).all(|pair| pair[1] >= pair[0]), "{dropped:?}");
    // The rank that receives most determines the time, whatever is dropped.
    assert!(rows.numbers("slowdown").iter().all(|times| *times >= 1.0), "{:?}", rows.cells());
}

#[test]
fn parameter_server_has_ratios_of_times_and_of_bytes() {
    for params in [&["latency=0"][..], &["density=0.01"], &[]] {
        let rows = run("parameter-server", params, &[], 1).rows;
        let column = |name: &str| rows.numbers(name);
        let (servers, ring) = (column("server_seconds"), column("ring_seconds"));
        let (times, bytes) = (column("seconds_ratio"), column("bytes_ratio"));
        for row in 0..servers.len() {
            assert_eq!(times[row].to_bits(), (servers[row] / ring[row]).to_bits());
            // Latency is all in which they differ.
            let is_equal = (times[row] / bytes[row] - 1.0).abs() < 1e-6;
            assert_eq!(is_equal, params == ["latency=0"] || row == 0 && is_equal, "{row}");
        }
    }
}

#[test]
fn torus_has_the_spectral_gap_of_the_engine() {
    for (workers, degree, gap) in [(4, 2.0, 2.0 / 3.0), (16, 4.0, 0.4), (64, 4.0, 0.117_157)] {
        let report = run("gossip", &[&format!("workers={workers}")], &[], 1);
        let torus = report.rows.texts("graph").iter().position(|graph| graph == "torus");
        let torus = torus.expect("it is one of the graphs");
        assert!((report.rows.numbers("degree")[torus] - degree).abs() < 1e-9, "{workers}");
        assert!((report.rows.numbers("spectral_gap")[torus] - gap).abs() < 1e-4, "{workers}");
    }
}
