//! Help and plans use the field's words: no banned word, and no unexplained abbreviation.
//!
//! Banned words come from the list that `cargo xtask tidy` enforces on the source, abbreviations
//! from the tables of the glossary. Names of flags, subcommands and JSON fields also have none of
//! the words that are fine in a sentence only.

use crate::process::Folder;
use serde_json::Value;
use std::collections::BTreeSet;

const BANNED: &str = include_str!("../../../../xtask/tidy/vocabulary.txt");
const GLOSSARY: &str = include_str!("../../../../docs/book/reference/glossary.md");
const KEYS: &str = include_str!("../../../../docs/book/reference/config.md");

/// Words and phrases that user-visible text must not have.
struct Banned {
    terms: BTreeSet<String>,
    /// Parts that names must not have.
    parts: BTreeSet<String>,
    /// Names that contain such a part and are the field's.
    allowed: BTreeSet<String>,
    phrases: Vec<String>,
}

impl Banned {
    fn parse() -> Self {
        let (mut terms, mut phrases) = (BTreeSet::new(), Vec::new());
        let (mut parts, mut allowed) = (BTreeSet::new(), BTreeSet::new());
        for line in BANNED.lines().filter(|line| !line.starts_with('#')) {
            let rule = line.split_once(" -> ").map_or(line, |(rule, _)| rule);
            match rule.split_once(' ') {
                Some(("text", word)) => drop(terms.insert(word.to_lowercase())),
                Some(("name", word)) => drop(parts.insert(word.to_lowercase())),
                Some(("allow", name)) => drop(allowed.insert(name.to_lowercase())),
                Some(("phrase", phrase)) => phrases.push(phrase.to_lowercase()),
                _ => {}
            }
        }
        assert!(terms.len() > 10 && parts.len() > 10 && !phrases.is_empty(), "the list is parsed");
        Self { terms, parts, allowed, phrases }
    }

    /// Every banned part of a name in snake case or kebab case.
    fn find_in_name(&self, name: &str) -> Vec<String> {
        let name = name.to_lowercase().replace('-', "_");
        let is_banned = |part: &&str| self.parts.contains(*part) || self.terms.contains(*part);
        let found = name.split('_').filter(is_banned).map(str::to_owned).collect();
        if self.allowed.contains(&name) { Vec::new() } else { found }
    }

    /// Everything in a text that is banned.
    fn find(&self, text: &str) -> Vec<String> {
        let lower = text.to_lowercase();
        let parts = lower.split(|c: char| !c.is_alphanumeric());
        let mut found: Vec<String> =
            parts.filter(|part| self.terms.contains(*part)).map(str::to_owned).collect();
        let flat = lower.split_whitespace().collect::<Vec<_>>().join(" ");
        found.extend(self.phrases.iter().filter(|phrase| flat.contains(*phrase)).cloned());
        found
    }
}

/// Terms of the first column of all tables of the glossary.
fn glossary() -> BTreeSet<String> {
    let rows = GLOSSARY.lines().filter(|line| line.starts_with('|') && !line.starts_with("|-"));
    let terms = rows.filter_map(|row| row.split('|').nth(1));
    let parts = terms.flat_map(|term| term.split([',', ' ', ';']));
    parts.map(|part| part.trim().trim_matches(char::is_numeric).to_owned()).collect()
}

/// Words with two or more capitals that are neither value names nor environment variables.
fn abbreviations(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut value_names: BTreeSet<&str> = BTreeSet::new();
    for name in text.split(['<', '[']).skip(1).filter_map(|rest| rest.split(['>', ']']).next()) {
        value_names.extend(name.split(|c: char| !is_part(c)));
    }
    let mut found = BTreeSet::new();
    for word in text.split(|c: char| !is_part(c)) {
        let num_capitals = word.chars().filter(char::is_ascii_uppercase).count();
        if num_capitals < 2 || word.contains('_') || value_names.contains(word) {
            continue;
        }
        // Degrees and amounts: TP8, 16MiB.
        found.insert(word.trim_matches(char::is_numeric).to_owned());
    }
    found
}

/// Names of the subcommands that a help text lists.
fn subcommands(help: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let listed = lines.take_while(|line| line.starts_with(' '));
    let names = listed.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    names.filter(|name| !name.is_empty() && *name != "help").map(str::to_owned).collect()
}

/// Names of the flags that a help text lists.
fn flags(help: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let long = lines.filter_map(|line| line.split("--").nth(1));
    long.map(|rest| rest.chars().take_while(|c| is_part(*c)).collect()).collect()
}

/// Help of a command and of everything below it.
fn help_of_all(folder: &Folder, command: &[String]) -> Vec<(String, String)> {
    let arguments: Vec<&str> = command.iter().map(String::as_str).chain(["--help"]).collect();
    let help = folder.succeed(&arguments).stdout;
    let names = subcommands(&help);
    let mut all = vec![(format!("lockstep {}", arguments.join(" ")), help)];
    for name in names {
        all.extend(help_of_all(folder, &[command, &[name]].concat()));
    }
    all
}

/// All keys of a JSON value.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (key, inner) in object {
                found.insert(key.clone());
                keys(inner, found);
            }
        }
        Value::Array(list) => list.iter().for_each(|inner| keys(inner, found)),
        _ => {}
    }
}

#[test]
fn help_and_plan_use_field_words() {
    let folder = Folder::new();
    let mut texts = help_of_all(&folder, &[]);
    assert!(texts.len() > 25, "all commands are found: {}", texts.len());
    let plan = ["plan", "--model", "llama3-70b", "--cluster", "256xh100-80gb"];
    let more = ["--what-if", "--scaling"];
    texts.push(("plan".to_owned(), folder.succeed(&[&plan[..], &more].concat()).stdout));
    let report = folder.json(&[&plan[..], &more, &["--json"]].concat());
    let mut names = BTreeSet::new();
    keys(&report, &mut names);
    let banned = Banned::parse();
    let of_help =
        texts.iter().flat_map(|(_, help)| [subcommands(help), Vec::from_iter(flags(help))]);
    names.extend(of_help.flatten());
    assert!(names.len() > 200 && ["mfu", "set", "inspect"].iter().all(|n| names.contains(*n)));
    let wrong: Vec<_> = names.iter().filter(|name| !banned.find_in_name(name).is_empty()).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let names: Vec<String> = names.into_iter().collect();
    texts.push(("plan --json".to_owned(), names.join("\n")));

    let known = glossary();
    let mut wrong = Vec::new();
    for (source, text) in &texts {
        wrong.extend(banned.find(text).into_iter().map(|word| format!("{source}: {word}")));
        let unknown = abbreviations(text).into_iter().filter(|word| !known.contains(word));
        wrong.extend(unknown.map(|word| format!("{source}: {word} is not in the glossary")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn banned_text_and_unknown_abbreviations_are_found() {
    let banned = Banned::parse();
    let (term, phrase) = (banned.terms.first().expect("a term"), &banned.phrases[0]);
    assert_eq!(
        banned.find(&format!("Each {} of the run", term.to_uppercase())),
        std::slice::from_ref(term)
    );
    let broken = phrase.replace(' ', "\n   ");
    assert!(banned.find(&format!("of {broken} it")).contains(phrase), "across lines");
    assert!(banned.find("planes and a microbatch").is_empty());
    let part = banned.parts.first().expect("a part");
    assert_eq!(banned.find_in_name(&format!("a-{part}")), std::slice::from_ref(part));
    assert!(banned.find_in_name("late_fraction").is_empty(), "it is allowed");
    assert_eq!(
        flags("  -q, --quiet\n      --set <KEY>  of --other\n"),
        ["quiet", "set"].map(str::to_owned).into()
    );
    let found = abbreviations("TP8 and XYZ, <FILE> to FILE.svg, [NAME] NAME, RUN_DIR, 16GiB, Adam");
    let expected = ["GiB", "TP", "XYZ"].map(str::to_owned);
    assert_eq!(found, expected.into());
    assert!(glossary().contains("MFU") && !glossary().contains("XYZ"));
    assert_eq!(subcommands("Usage\n\nCommands:\n  a   x\n      y\n  b\n\nOptions:\n"), ["a", "b"]);
}

#[test]
fn keys_of_the_glossary_are_recipe_keys() {
    let listed = KEYS.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let known: BTreeSet<&str> = listed.collect();
    let rows = GLOSSARY.lines().filter(|line| line.starts_with('|'));
    // The last column has keys, commands and JSON fields in backquotes.
    let codes = rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next());
    let codes = codes.flat_map(|column| column.split('`').skip(1).step_by(2));
    let tables: BTreeSet<&str> = known.iter().filter_map(|key| key.split('.').next()).collect();
    let keys: Vec<&str> = codes
        .filter(|code| code.split_once('.').is_some_and(|(table, _)| tables.contains(table)))
        .collect();
    assert!(keys.len() > 60, "the tables are parsed: {keys:?}");
    for key in keys {
        assert!(known.contains(key), "{key}");
    }
}
