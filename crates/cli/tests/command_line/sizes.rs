//! `lockstep plan size`: the smallest cluster for a deadline or a budget.

use crate::plan::refusal;
use crate::process::{Folder, assert_keys};
use serde_json::Value;

const MODEL: [&str; 7] =
    ["plan", "size", "--model", "gpt3-6.7b", "--device", "a100-80gb", "--tokens"];

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

fn sizes(folder: &Folder, more: &[&str]) -> Vec<Value> {
    let sizes = folder.json(&[&MODEL[..], &["134e9"], more, &["--json"]].concat());
    sizes.as_array().expect("a list").clone()
}

#[test]
fn the_smallest_cluster_has_sufficient_network_and_storage() {
    let folder = Folder::new();
    let sizes = sizes(&folder, &["--days", "20"]);
    let (last, failed) = sizes.split_last().expect("a size");
    let names = "devices layout batch batch_tokens batch_tokens_requested step_seconds days \
        days_range dollars dollars_range ranges days_depend_on dollars_depend_on speed_up \
        efficiency storage_gbps network_gbps devices_range meets";
    assert_keys(last, names);
    assert!(last["meets"] == true && number(&last["days"]) <= 20.0, "{last}");
    assert!(failed.iter().all(|size| size["meets"] == false && size["network_gbps"].is_null()));
    let (devices, doubled) = (&last["devices"], failed.last().expect("one fails"));
    assert!(number(devices) < 2.0 * number(&doubled["devices"]), "{devices} after {doubled}");
    let [fewer, more] = [0, 1].map(|end| number(&last["devices_range"][end]));
    assert!(fewer <= number(devices) && number(devices) <= more, "{last}");
    // The slower network and storage are sufficient together.
    let text = format!(
        "device = \"a100-80gb\"\ndevices = {devices}\nnetwork_gbps = {:?}\nstorage_gbps = {:?}\n",
        number(&last["network_gbps"]),
        number(&last["storage_gbps"])
    );
    folder.write("cluster.toml", text.as_bytes());
    let batch = last["batch"].to_string();
    let plan = ["plan", "--model", "gpt3-6.7b", "--cluster", "cluster.toml", "--tokens", "134e9"];
    let plan = folder.json(&[&plan[..], &["--batch", &batch, "--json"]].concat());
    assert!(number(&plan["days"]) <= 20.0, "{plan}");
    assert!(number(&last["network_gbps"]) < 25.0, "slower than the device's own: {last}");
}

#[test]
fn ranges_name_the_most_sensitive_input() {
    let folder = Folder::new();
    let sizes = sizes(&folder, &["--devices", "8"]);
    let size = &sizes[0];
    let ranges = size["ranges"].as_array().expect("a list");
    let ends = |range: &Value, what: &str| [0, 1].map(|end| number(&range[what][end]));
    let by = |input: &str| ranges.iter().find(|range| range["input"] == input).expect("an input");
    let (days, dollars) = (number(&size["days"]), number(&size["dollars"]));
    let [low, high] = ends(size, "days_range");
    for range in ranges {
        let [better, worse] = ends(range, "days");
        assert!(low <= better && better <= days && days <= worse && worse <= high, "{range}");
    }
    // One node uses no network, and the price changes dollars proportionally.
    for input in ["network bandwidth", "price"] {
        let off = ends(by(input), "days").map(|end| (end - days).abs());
        assert!(off[0].max(off[1]) <= 0.0, "{input} makes no difference to days");
    }
    for (end, share) in ends(by("price"), "dollars").into_iter().zip([0.8, 1.2]) {
        assert!((end / dollars - share).abs() < 1e-9, "{end} of {dollars}");
    }
    // Matrix products are most of a step on one node, but not all of it.
    let [better, worse] = ends(by("device compute"), "days");
    assert!(1.1 * days < worse && worse < 1.25 * days, "{worse} of {days}");
    assert!(days / 1.2 < better && better < 0.95 * days, "{better} of {days}");
    assert_eq!(size["days_depend_on"], "device compute");
    assert!(ends(by("failure rate"), "days")[1] > days && high > worse, "{size}");
}

#[test]
fn a_rounded_batch_is_reported() {
    let folder = Folder::new();
    let batch = ["--devices", "16", "--batch-tokens", "3000000"];
    let sizes = sizes(&folder, &batch);
    let size = &sizes[0];
    assert_eq!([&size["batch"], &size["batch_tokens"]], [1408, 1408 * 2048]);
    assert_eq!(size["batch_tokens_requested"], 3_000_000);
    let text = folder.succeed(&[&MODEL[..], &["134e9"], &batch].concat()).stdout;
    assert!(
        text.contains("1408 sequences, 2883584 tokens, instead of the requested 3000000"),
        "{text}"
    );
    let text = folder.succeed(&[&MODEL[..], &["134e9", "--devices", "16"]].concat()).stdout;
    assert!(!text.contains("instead of"), "{text}");
}

#[test]
fn unmet_limits_are_refused_with_limits_that_can_be_met() {
    let folder = Folder::new();
    let search = |more: &[&str]| folder.run(&[&MODEL[..], &["134e9", "--json"], more].concat());
    for (option, value) in [("--days", "0.01"), ("--dollars", "20")] {
        let finished = search(&[option, value]);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        let sizes: Value = serde_json::from_str(&finished.stdout).expect("still one JSON value");
        let sizes = sizes.as_array().expect("a list");
        assert!(sizes.len() > 5 && sizes.iter().all(|size| size["meets"] == false));
        // The suggested limit can be met.
        let (_, fix) = finished.stderr.split_once("; try ").expect("a fix");
        let mut parts = fix.split_whitespace();
        assert_eq!(parts.next(), Some(option), "{fix}");
        let better = search(&[option, parts.next().expect("a value")]);
        assert_eq!(better.code, Some(0), "{}", better.stderr);
    }
    let error = refusal(
        &folder,
        &[
            &MODEL[..2],
            &["--model", "gpt3-175b", "--device"],
            &["v100-16gb", "--tokens", "1e9", "--devices", "8"],
        ]
        .concat(),
    );
    assert!(error.contains("fits in 8 devices with 16 GiB; try --devices "), "{error}");
}

#[test]
fn every_invalid_argument_of_a_size_search_is_reported_with_a_fix() {
    let folder = Folder::new();
    let names = ["plan", "size", "--model", "llama-65", "--device", "a190-80gb"];
    let numbers =
        ["--tokens", "-1.4e12", "--days", "-21", "--batch-tokens", "0", "--devices", "-8"];
    let error = refusal(&folder, &[&names[..], &numbers].concat());
    let lines: Vec<&str> = error.lines().collect();
    let expected = [
        ("--model llama-65 ", "try llama-65b"),
        ("--device \"a190-80gb\" ", "try a100-80gb"),
        ("--tokens -1400000000000 ", "try 1.4e12"),
        ("--days -21 ", "try 21"),
        ("--devices -8 ", "try 8"),
        ("--batch-tokens 0 ", "try 4194304"),
    ];
    assert_eq!(lines.len(), expected.len(), "{error}");
    for (wrong, fix) in expected {
        assert!(lines.iter().any(|l| l.contains(wrong) && l.contains(fix)), "{wrong}: {error}");
    }
    let error = refusal(
        &folder,
        &["plan", "size", "--model", "gpt2", "--device", "abacus"]
            .into_iter()
            .chain(["--tokens", "1e9"])
            .collect::<Vec<_>>(),
    );
    assert!(error.contains("h100-80gb") && error.contains("try --days 30"), "{error}");
}
