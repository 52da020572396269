//! `lockstep config KEY` and `lockstep config --search WORD`.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_config::Recipe;
use lockstep_config::catalog::{self, CatalogEntry, KeyEntry, SearchResult, ValueOrigin};
use lockstep_platform::{FileKind, World};
use std::fmt::Write;
use std::path::Path;

/// The key among the arguments, with the arguments of the recipe: a file is a recipe, and so is a
/// folder, unless it has the name of a key or table.
pub(super) fn split(
    arguments: &RecipeArguments,
    second: Option<&Path>,
    world: &World,
) -> Option<(String, RecipeArguments)> {
    let first = arguments.path()?;
    let text = |path: &Path| path.display().to_string();
    if is_recipe(first, world) {
        return second.map(|key| (text(key), arguments.clone()));
    }
    Some((text(first), arguments.with_path(second.map(Path::to_owned))))
}

fn is_recipe(path: &Path, world: &World) -> bool {
    let has_folder = path.parent().is_some_and(|parent| parent != Path::new(""));
    let is_toml = path.extension().is_some_and(|extension| extension == "toml");
    match world.files().metadata(path) {
        Some(FileKind::File { .. }) => true,
        Some(_) => !is_key_or_table(path),
        None => has_folder || is_toml || path.is_absolute(),
    }
}

fn is_key_or_table(path: &Path) -> bool {
    let found = catalog::look_up(&path.display().to_string(), &Recipe::default());
    matches!(found, Some(CatalogEntry::Key { .. } | CatalogEntry::Table { .. }))
}

/// Prints a key, a table, or the counterpart of a name of another framework.
pub(super) fn show(name: &str, recipe: &Recipe, json: bool) -> Result<(), Failure> {
    let Some(found) = catalog::look_up(name, recipe) else {
        return Err(unknown(name, recipe));
    };
    if json {
        return output::json(&found);
    }
    let mut text = String::new();
    match &found {
        CatalogEntry::Key { key } => text += &key_text(key),
        CatalogEntry::Table { name, meaning, keys } => {
            let _ = writeln!(text, "[{name}]  {meaning}\n");
            for key in keys {
                text += &line(key, None);
            }
            let _ = writeln!(text, "\n`lockstep config {}` shows one of them", keys[0].doc.name);
        }
        CatalogEntry::Synonym { name, counterpart, keys } => {
            let _ = writeln!(text, "{name}: {counterpart}");
            for key in keys {
                text.push('\n');
                text += &key_text(key);
            }
        }
    }
    output::text(&text)
}

fn unknown(name: &str, recipe: &Recipe) -> Failure {
    let close = catalog::close_name(name).map(|close| format!("try {close}"));
    let found = catalog::search(&[name], recipe).first().map(|result| result.key.doc.name);
    let fix = close.or_else(|| found.map(|key| format!("try {key}")));
    let fix = fix.unwrap_or_else(|| "`lockstep config` lists every key".to_owned());
    Failure::user(format!("{name} is neither a recipe file nor a key; {fix}"))
}

/// All that is known of a key.
fn key_text(key: &KeyEntry) -> String {
    let KeyEntry { doc, value, origin, without_effect, synonyms, related } = key;
    let mut text = format!("{}\n", doc.name);
    for line in wrapped(&doc.meaning, WIDTH - INDENT.len()) {
        let _ = writeln!(text, "{INDENT}{line}");
    }
    let value = match (value, without_effect, origin) {
        (_, Some(condition), _) => format!("none in this recipe: {condition}"),
        (None, ..) => "none".to_owned(),
        (Some(value), None, ValueOrigin::Default) => format!("{value} (the default)"),
        (Some(value), None, ValueOrigin::Derived) => format!("{value} (derived)"),
        (Some(value), None, _) => value.clone(),
    };
    let (table, leaf) = doc.name.split_once('.').unwrap_or(("", doc.name));
    let example = key.value.as_deref().unwrap_or("...");
    let mut rows = vec![
        ("value", value),
        ("default", doc.default.to_owned()),
        ("allowed", doc.allowed.clone()),
        (
            "set",
            format!("--set {}={}, or {leaf} under [{table}]", doc.name, example.trim_matches('"')),
        ),
    ];
    if !synonyms.is_empty() {
        rows.push(("elsewhere", synonyms.join(", ")));
    }
    if !related.is_empty() {
        rows.push(("related", related.join(", ")));
    }
    for (name, value) in rows {
        let lines = wrapped(&value, WIDTH - INDENT.len() - COLUMN);
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            let _ = writeln!(text, "{INDENT}{name:<COLUMN$}{line}");
        }
    }
    text
}

/// Width of the text.
const WIDTH: usize = 100;
const INDENT: &str = "    ";
/// Width of the names of rows.
const COLUMN: usize = 11;
/// Width of keys in lists.
const NAME: usize = 32;
/// Most keys of a search.
const MAX_RESULTS: usize = 12;

/// Prints the keys that match every term.
pub(super) fn search(terms: &[String], recipe: &Recipe, json: bool) -> Result<(), Failure> {
    let terms: Vec<&str> = terms.iter().map(String::as_str).collect();
    let found = catalog::search(&terms, recipe);
    if json {
        return output::json(&found);
    }
    if found.is_empty() {
        let all = terms.join(" ");
        let fix = "try fewer words, or `lockstep config`, which lists every key";
        return Err(Failure::user(format!("no key has {all:?} in its name or meaning; {fix}")));
    }
    let mut text = String::new();
    for SearchResult { key, synonym } in found.iter().take(MAX_RESULTS) {
        text += &line(key, *synonym);
    }
    if found.len() > MAX_RESULTS {
        let more = found.len() - MAX_RESULTS;
        let _ = writeln!(text, "and {more} more; a second --search narrows them down");
    }
    output::text(&text)
}

/// A key on one line: name, value, and the beginning of its meaning.
fn line(key: &KeyEntry, synonym: Option<&str>) -> String {
    let value = match &key.value {
        Some(value) => format!("{} = {value}", key.doc.name),
        None => key.doc.name.to_owned(),
    };
    let also = synonym.map_or(String::new(), |name| format!("({name}) "));
    let space = WIDTH.saturating_sub(value.chars().count().max(NAME) + 2);
    let meaning = format!("{also}{}", key.doc.meaning);
    format!("{value:<NAME$}  {}\n", shortened(&meaning, space))
}

/// The beginning of a text, up to a whole word.
fn shortened(text: &str, width: usize) -> String {
    let Some(first) = wrapped(text, width).into_iter().next() else { return String::new() };
    if first.len() == text.len() {
        return first;
    }
    let mut lines = wrapped(text, width.saturating_sub(4).max(8));
    lines.swap_remove(0) + " ..."
}

/// A text in lines of at most this many characters, where its words allow it.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_spaces() {
        assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
        assert_eq!(wrapped("enormous", 3), ["enormous"]);
        assert_eq!(shortened("one two three four", 100), "one two three four");
        assert_eq!(shortened("one two three four", 12), "one two ...");
        assert_eq!(shortened("", 12), "");
    }

    #[test]
    fn the_text_of_every_key_is_within_its_width() {
        let recipe = Recipe::default();
        for doc in lockstep_config::describe_keys() {
            let Some(CatalogEntry::Key { key }) = catalog::look_up(doc.name, &recipe) else {
                panic!("{} is a key", doc.name);
            };
            for line in key_text(&key).lines() {
                assert!(line.chars().count() <= WIDTH, "{line}");
            }
            assert_eq!(line(&key, Some("name")).lines().count(), 1, "{}", doc.name);
        }
    }
}
