//! Tests of the quality rules: each on a text that breaks it and no other, and counted by hand.

use lockstep_platform::ScratchDir;

use super::document::Document;
use super::*;
use crate::ReadOptions;

fn measure(name: &str, text: &str) -> f64 {
    let rule = rules().find(|rule| rule.name == name).expect("a rule of the table");
    (rule.measure)(&Document::of(text))
}

/// A text that breaks no rule.
fn good() -> String {
    "The harbour wakes before the sun, when lamps move along the quay and crews call from boat to \
     boat. By seven the first crates of fish stand on wet stones. Buyers have come with carts, and \
     each one bargains as loudly as a neighbour will allow. Children run between them, hoping that \
     someone drops a coin. An hour later everything is over. Gulls take what is left, sweepers \
     follow slowly behind, and the water lies still until evening brings new sails home."
        .to_owned()
}

fn broken(text: &str) -> Vec<&'static str> {
    let document = Document::of(text);
    rules().filter(|rule| rule.is_broken(rule.limit, &document)).map(|rule| rule.name).collect()
}

#[test]
fn a_good_text_breaks_no_rule_and_each_fault_breaks_its_own() {
    let good = good();
    assert_eq!(broken(&good), [""; 0], "{good}");
    let with = |fault: &str| broken(&(good.clone() + fault));
    assert_eq!(with("Lorem Ipsum dolor sit amet."), ["lorem-ipsum"]);
    assert_eq!(with("if (a) { b }"), ["curly-brackets"]);
    assert_eq!(with(&"#".repeat(20)), ["hashes"]);
    assert_eq!(with(&"...".repeat(20)), ["ellipses", "ellipsis-lines"]);
    assert_eq!(
        broken("The cat and the dog have eaten. So they are fed. All is well."),
        ["min-terms"]
    );
    let bullets =
        good.split_inclusive(". ").fold(String::new(), |all, line| all + "* " + line + "\n");
    assert_eq!(broken(&bullets), ["bullet-lines"]);
    let foreign = [("the", "ze"), ("The", "Ze"), (" and ", " und "), (" to ", " bis ")];
    let more = [(" of ", " von "), (" have ", " sind "), (" with ", " mit "), (" that ", " dass ")];
    let foreign =
        foreign.iter().chain(&more).fold(good.clone(), |t, (from, to)| t.replace(from, to));
    assert_eq!(broken(&foreign), ["stop-terms"]);
    assert_eq!(broken(&good.replace(['.', ','], ";")), ["sentences"]);
    let numbers = (1000..1060).fold(good.clone(), |all, n: u32| all + &n.to_string() + " ");
    assert_eq!(broken(&numbers), ["alphabetic-terms"]);
}

#[test]
fn measurements_are_those_counted_by_hand() {
    assert!((measure("min-term-length", "ab cde äöüß") - 3.0).abs() < 1e-12);
    assert_eq!(measure("stop-terms", "The THE of cat").to_bits(), f64::to_bits(2.0));
    assert_eq!(measure("repeated-lines", "a\nb\na\n\na\n").to_bits(), f64::to_bits(0.5));
    assert_eq!(
        measure("repeated-paragraphs", "x y\n\nz\n \nx y").to_bits(),
        f64::to_bits(1.0 / 3.0)
    );
    assert_eq!(measure("repeated-line-text", "abc\nabc\nab").to_bits(), f64::to_bits(3.0 / 10.0));
    assert_eq!(measure("sentences", "One. Two! \"Three?\" 3.14 and").to_bits(), f64::to_bits(3.0));
    // `a b` occurs twice: four of the six characters.
    assert_eq!(measure("top-2-gram", "a b c a b d").to_bits(), f64::to_bits(4.0 / 6.0));
    assert_eq!(measure("top-2-gram", "a b c d").to_bits(), f64::to_bits(0.0));
    assert_eq!(
        measure("repeated-5-grams", "a b c d e f a b c d e").to_bits(),
        f64::to_bits(10.0 / 11.0)
    );
    assert_eq!(measure("repeated-6-grams", "a b c d e f a b c d e").to_bits(), f64::to_bits(0.0));
    for rule in rules() {
        assert!((rule.measure)(&Document::of("")).is_finite(), "{}", rule.name);
    }
}

#[test]
fn repeated_n_grams_are_those_of_a_search_over_all_pairs() {
    let term =
        |seed: u64, index: u64| ["a", "bb", "c"][crate::permutation::mix(seed, index) as usize % 3];
    for seed in 0..40 {
        let terms: Vec<&str> = (0..30).map(|index| term(seed, index)).collect();
        let text = terms.join(" ");
        for n in 5..=10 {
            let is_repeated = |place: usize| {
                let covering = (0..=terms.len() - n).filter(|at| (*at..at + n).contains(&place));
                covering.into_iter().any(|at| {
                    let same = |other: &usize| terms[*other..other + n] == terms[at..at + n];
                    (0..=terms.len() - n).filter(same).count() > 1
                })
            };
            let chars = |places: &mut dyn Iterator<Item = usize>| {
                places.map(|place| terms[place].len()).sum::<usize>()
            };
            let all = chars(&mut (0..terms.len()));
            let expected = chars(&mut (0..terms.len()).filter(|place| is_repeated(*place)));
            let found = measure(&format!("repeated-{n}-grams"), &text);
            let share = expected as f64 / all as f64;
            assert_eq!(found.to_bits(), share.to_bits(), "seed {seed}, n {n}: {text}");
        }
    }
}

#[test]
fn names_are_unique_and_the_report_counts_the_first_broken_rule() {
    let mut names: Vec<&str> = rules().map(|rule| rule.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]));

    let world = lockstep_platform::real();
    let scratch = ScratchDir::new(&world, "filter").unwrap();
    let (source, target) = (scratch.path().join("in.jsonl"), scratch.path().join("out.jsonl"));
    let texts = [good(), "short {".to_owned(), good() + "{", good()];
    let lines = texts.iter().map(|text| serde_json::json!({ "text": text }).to_string() + "\n");
    world.files().write_atomic(&source, lines.collect::<String>().as_bytes()).unwrap();
    let active: Vec<_> = rules().map(|rule| ActiveRule { rule, limit: rule.limit }).collect();
    let run = || {
        let documents = Documents::open(&source, &ReadOptions::default(), &world).unwrap();
        filter(documents, &target, &active, "body", &world, &mut |_| {})
    };
    let report = run().unwrap();
    assert_eq!((report.num_documents, report.num_kept), (4, 2));
    assert_eq!(report.removed.iter().sum::<u64>(), 2);
    let of = |name: &str, counts: &[u64]| {
        counts[active.iter().position(|active| active.rule.name == name).unwrap()]
    };
    assert_eq!([of("min-terms", &report.removed), of("curly-brackets", &report.removed)], [1, 1]);
    assert_eq!(of("curly-brackets", &report.broken), 2);
    let options = ReadOptions { field: "body".to_owned(), ..ReadOptions::default() };
    let mut kept = Documents::open(&target, &options, &world).unwrap();
    let mut text = String::new();
    assert!(kept.next_document(&mut text).unwrap());
    assert_eq!(text, good());
    let error = run().unwrap_err().to_string();
    assert!(error.ends_with("out.jsonl exists; give --out another name"), "{error}");
    assert_eq!(world.files().list(scratch.path()).unwrap().len(), 2, "nothing is left behind");
}
