//! `lockstep data dedup` and `lockstep data filter`; mixtures on the command line.

use crate::bad_input::refused;
use crate::process::{Folder, assert_keys};

fn lines(texts: &[&str]) -> Vec<u8> {
    let line = |text: &&str| serde_json::json!({ "text": text }).to_string() + "\n";
    texts.iter().map(line).collect::<String>().into_bytes()
}

const LONG: &str = "one two three four five six seven eight nine ten eleven twelve thirteen \
                    fourteen fifteen sixteen seventeen eighteen nineteen twenty";

#[test]
fn repeated_documents_are_removed_and_counted() {
    let folder = Folder::new();
    let similar = LONG.replace("twenty", "twenty!");
    folder.write("in.jsonl", &lines(&[LONG, "other", &LONG.to_uppercase(), &similar]));
    let report = folder.json(&["data", "dedup", "in.jsonl", "--out", "a.jsonl", "--json"]);
    assert_keys(
        &report,
        "out num_documents num_kept num_exact num_similar text_bytes kept_bytes memory_bytes bands \
         rows seconds",
    );
    assert_eq!([&report["num_kept"], &report["num_exact"]], [&3, &1]);
    let command = ["data", "dedup", "in.jsonl", "--out", "b.jsonl", "--similar"];
    let text = folder.succeed(&command).stdout;
    assert!(
        text.starts_with("b.jsonl: 2 of 4 documents\nremoved 1 exact copies and 1 near"),
        "{text}"
    );
    refused(&folder, &command, &["b.jsonl exists"]);
}

#[test]
fn documents_of_low_quality_are_removed_by_rules_that_can_be_changed() {
    let folder = Folder::new();
    let good = format!("{LONG}. That is the end of the list. There is nothing to add to it.");
    folder.write("in.jsonl", &lines(&[&good, "short", &(good.clone() + " {}")]));
    let command = |more: &[&'static str]| {
        let command = ["data", "filter", "in.jsonl", "--limit", "min-terms=20", "--json"];
        [&command[..], more].concat()
    };
    let report = folder.json(&command(&["--out", "a.jsonl"]));
    assert_keys(&report, "out num_documents num_kept text_bytes kept_bytes rules seconds");
    assert_eq!([&report["num_documents"], &report["num_kept"]], [&3, &1]);
    let rules = report["rules"].as_array().unwrap();
    let removed = |name: &str| {
        rules.iter().find(|rule| rule["name"] == name).unwrap()["removed"].as_u64().unwrap()
    };
    assert_eq!([removed("min-terms"), removed("curly-brackets")], [1, 1]);
    let without_c4 = folder.json(&command(&["--out", "b.jsonl", "--without", "c4"]));
    assert_eq!(without_c4["num_kept"], 2);
    let list = folder.json(&["data", "filter-rules", "--json"]);
    let list = list.as_array().unwrap();
    assert!(list.len() > 20 && list.iter().all(|rule| rule["citation"].is_string()));
    assert!(folder.succeed(&["data", "filter-rules"]).stdout.contains("top-2-gram "));
}

#[test]
fn hostile_corpora_and_wrong_options_are_refused_in_one_line() {
    let folder = Folder::new();
    let parquet = include_bytes!("../../../data/golden/snappy.parquet");
    folder.write("cut.parquet", &parquet[..parquet.len() - 9]);
    folder.write("latin.jsonl", b"{\"text\": \"good\"}\n{\"text\": \"caf\xe9\"}\n");
    folder.write("gigantic.jsonl", &vec![b'x'; (64 << 20) + 2]);
    folder.write("in.jsonl", &lines(&["one"]));
    for command in ["dedup", "filter"] {
        for (corpus, parts) in [
            ("cut.parquet", &["cut.parquet cannot be read as Parquet"][..]),
            ("latin.jsonl", &["latin.jsonl is not UTF-8 text: byte 30"]),
            ("gigantic.jsonl", &["gigantic.jsonl line 1 is longer than 67108864 bytes"]),
            ("missing.txt", &["missing.txt does not exist"]),
        ] {
            refused(&folder, &["data", command, corpus, "--out", "out.jsonl"], parts);
        }
        let nowhere = ["data", command, "in.jsonl", "--out", "no/out.jsonl"];
        refused(&folder, &nowhere, &["cannot write no/out.jsonl: its folder does not exist"]);
    }
    let dedup = |more: &[&'static str]| {
        [&["data", "dedup", "in.jsonl", "--out", "o.jsonl"][..], more].concat()
    };
    refused(&folder, &dedup(&["--memory", "1kB"]), &["--memory allows 1000"]);
    refused(&folder, &dedup(&["--similar", "--threshold", "1.5"]), &["--threshold 1.5"]);
    let filter = |more: &[&'static str]| {
        [&["data", "filter", "in.jsonl", "--out", "o.jsonl"][..], more].concat()
    };
    refused(
        &folder,
        &filter(&["--limit", "min-term=3"]),
        &["min-term is not the name", "min-terms"],
    );
    refused(&folder, &filter(&["--limit", "min-terms"]), &["is not RULE=NUMBER"]);
    refused(&folder, &filter(&["--without", "gofer"]), &["--without gofer is not the name"]);
}

#[test]
fn a_mixture_trains_resumes_with_other_weights_and_reports_its_sources() {
    let folder = Folder::new();
    folder.write("a.jsonl", &lines(&[LONG; 40]));
    let recipe = |weight: f64| {
        format!(
            "[data]\nvalidation = 0.2\nmixture = [\n  {{ source = \"a.jsonl\", weight = {weight:?} \
             }},\n  {{ source = \"bundled\", weight = 1.0 }},\n]\n[train]\nsteps = 4\n[run]\n\
             workers = 2\n"
        )
    };
    folder.write("mix.toml", recipe(3.0).as_bytes());
    folder.write("other.toml", recipe(1.0).as_bytes());
    let sets = ["--preset", "tiny", "--json", "--quiet"];
    let first = ["train", "mix.toml", "--stop-after", "2", "--set", "run.dir=half"];
    let half = folder.json(&[&first[..], &sets].concat());
    let rest = folder.json(&[&["train", "other.toml", "--resume", "half"][..], &sets].concat());
    let tokens = |report: &serde_json::Value, index: usize| {
        report["sources"][index]["tokens"].as_u64().unwrap()
    };
    for report in [&half, &rest] {
        assert_eq!(tokens(report, 0) + tokens(report, 1), report["tokens"].as_u64().unwrap());
    }
    assert!(tokens(&rest, 0) >= tokens(&half, 0) && tokens(&rest, 1) > tokens(&half, 1));
}
