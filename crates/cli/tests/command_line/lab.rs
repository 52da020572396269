//! `lockstep lab`: experiments run on this machine stand beside their simulation.

use crate::process::Folder;

#[test]
fn a_real_run_prints_both_columns_and_the_parameters_of_the_simulation() {
    let folder = Folder::new();
    let quick = "lab data-parallel --real --json --param workers=2 --param forward=2ms \
                 --param backward=2ms --param gradient=8kB --param latency=1ms";
    let arguments: Vec<&str> = quick.split_whitespace().collect();
    let report = folder.json(&arguments);
    assert_eq!(report["name"], "data-parallel");
    assert_eq!(report["parameters"]["workers"], 2.0);
    let row = &report["rows"][0];
    for column in ["simulated", "measured"] {
        let seconds = row[column].as_f64().expect("a time");
        assert!(seconds > 0.004, "it computes for 4 ms: {row}");
    }
    assert!(row["difference"].is_number(), "{row}");
}

#[test]
fn what_cannot_be_run_is_said_with_what_can() {
    let refused = Folder::new().run(&["lab", "zero-memory", "--real"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("data-parallel"), "{}", refused.stderr);
}
