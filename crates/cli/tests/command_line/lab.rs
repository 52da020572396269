//! `lockstep lab`: simulations, measurements on this machine, and stable JSON names.

use crate::process::Folder;
use serde_json::{Value, json};
use std::path::PathBuf;

#[test]
fn a_measured_run_has_simulated_and_measured_columns() {
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
fn an_experiment_without_a_measurement_is_refused() {
    let refused = Folder::new().run(&["lab", "zero-memory", "--real"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("data-parallel"), "{}", refused.stderr);
}

/// Names of an object.
fn names(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

/// Scripts rely on these names.
#[test]
fn reports_have_the_documented_names() {
    let folder = Folder::new();
    let run = |line: &str| folder.json(&line.split_whitespace().collect::<Vec<_>>());
    let report =
        run("lab stragglers --json --param steps=20 --sweep workers=2,4 --seeds 3 --seed 7");
    let mut found = names(&report);
    found.sort_unstable();
    let mut documented =
        ["name", "parameters", "sweep", "seeds", "seed", "columns", "rows", "findings"];
    documented.sort_unstable();
    assert_eq!(found, documented);
    assert_eq!((&report["seeds"], &report["seed"]), (&json!(3), &json!(7)));
    assert_eq!(report["sweep"], json!({"workers": [2.0, 4.0]}));
    let columns = report["columns"].as_array().expect("a list");
    for column in columns {
        let mut found = names(column);
        found.sort_unstable();
        assert_eq!(found, ["meaning", "name", "unit"]);
        let unit = column["unit"].as_str().expect("a word");
        let units =
            ["count", "number", "seconds", "bytes", "bytes_per_second", "share", "times", "text"];
        assert!(units.contains(&unit), "{column}");
    }
    // Every column is in every row, with a confidence interval where seeds differ.
    let row = report["rows"][0].as_object().expect("an object");
    for column in columns {
        let name = column["name"].as_str().expect("a word");
        assert!(row.contains_key(name), "{name}: {row:?}");
    }
    assert!(row["step_seconds_ci95"].as_f64().expect("a number") > 0.0, "{row:?}");
    // Events that never happen are null, and text stays text.
    let never = run("lab bounded-async --json --param step=constant --param staleness=50");
    assert_eq!(never["rows"][0]["iterations"], Value::Null, "{never}");
    let text = run("lab zero-memory --json --sweep workers=4");
    assert_eq!(text["rows"][0]["stage"], "stage 0", "{text}");
}

#[test]
fn walks_claims_and_lists_have_the_documented_names() {
    let folder = Folder::new();
    let run = |line: &str| folder.json(&line.split_whitespace().collect::<Vec<_>>());
    let walk = run("lab walk ring --ranks 4 --json");
    assert_eq!(walk["name"], "ring", "{walk}");
    assert_eq!(walk["rounds"].as_array().map(Vec::len), Some(7), "a start and six rounds");
    for name in ["title", "messages", "held", "sent_bytes"] {
        assert!(walk["rounds"][1].get(name).is_some(), "{name}: {}", walk["rounds"][1]);
    }
    let claims = run("lab claims --json");
    for claim in claims.as_array().expect("a list") {
        for name in ["claim", "verdict", "evidence", "experiment"] {
            assert!(claim[name].is_string(), "{name}: {claim}");
        }
    }
    let list = run("lab list --json");
    assert_eq!(run("lab --list --json"), list);
    assert!(list.as_array().expect("a list").contains(&json!("stragglers")), "{list}");
}

#[test]
fn timelines_are_drawn_where_there_is_one() {
    let folder = Folder::new();
    let drawn = folder.run(&["lab", "pipeline", "--timeline", "passes.svg"]);
    assert_eq!(drawn.code, Some(0), "{}", drawn.stderr);
    let refused = folder.run(&["lab", "scaling", "--timeline", "passes.svg"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("try data-parallel"), "{}", refused.stderr);
}

#[test]
fn a_notebook_repeats_the_command() {
    let folder = Folder::new();
    let sweep = ["--sweep", "workers=2,4", "--seeds", "2", "--seed", "7"];
    let mut arguments = vec!["lab", "stragglers", "--notebook", "lab.ipynb", "--json"];
    arguments.extend(sweep);
    let report = folder.json(&arguments);
    let path = folder.path().join("lab.ipynb");
    let text = lockstep_platform::real().files().read_to_string(&path).expect("a notebook");
    let notebook: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&notebook["nbformat"], &notebook["nbformat_minor"]), (&json!(4), &json!(5)));
    let source = notebook["cells"][1]["source"].as_str().expect("a cell");
    // The command in the cell gives the same report.
    let list = source.lines().find_map(|line| line.strip_prefix("command = ")).expect("a command");
    let command: Vec<String> = serde_json::from_str(list).expect("a list");
    let arguments: Vec<&str> = command[1..].iter().map(String::as_str).collect();
    assert_eq!(folder.json(&arguments), report);
}

#[test]
fn pictures_of_the_book_are_what_the_program_draws() {
    let book = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/book");
    let world = lockstep_platform::real();
    let folder = Folder::new();
    let mut num_drawn = 0;
    for page in ["internals/collectives.md", "internals/pipelines.md"] {
        let text = world.files().read_to_string(&book.join(page)).expect("a page");
        // A command may go on in the next line.
        let text = text.replace(" \\\n", " ");
        for command in text.lines().filter_map(|line| line.strip_prefix("lockstep ")) {
            let Some((_, image)) = command.rsplit_once("docs/book/images/") else { continue };
            let command = command.replace("docs/book/images/", "");
            folder.succeed(&command.split_whitespace().collect::<Vec<_>>());
            let committed = world.files().read(&book.join("images").join(image));
            let is_same = folder.read(image) == committed.expect("a committed picture");
            assert!(is_same, "{image} is stale; run lockstep {command} in the repository");
            num_drawn += 1;
        }
        let pictures = text.matches("](../images/").count();
        assert_eq!(text.matches("docs/book/images/").count(), pictures, "{page}");
    }
    assert!(num_drawn >= 12, "{num_drawn} pictures");
}
