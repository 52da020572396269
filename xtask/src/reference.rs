//! The generated pages of the book's reference.
//!
//! Keys come from the table that the program reads. Commands come from the program's own `--help`.
//! Events, exit codes and the manifest come from the doc comments of the types that are written
//! and read: a field without a sentence cannot compile, so a page cannot lack one.

mod source;

use std::fmt::Write as _;
use std::fs;

use anyhow::{Context, Result};

use crate::shell;
use source::Field;

/// A page, and the function that makes its text.
struct Page {
    path: &'static str,
    make: fn() -> Result<String>,
}

const PAGES: &[Page] = &[
    Page { path: "docs/book/reference/config.md", make: keys },
    Page { path: "docs/book/reference/commands.md", make: commands },
    Page { path: "docs/book/reference/events.md", make: events },
    Page { path: "docs/book/reference/exit-codes.md", make: exit_codes },
    Page { path: "docs/book/reference/manifest.md", make: manifest },
];

/// Every page as it should be now: its path and its text.
pub(crate) fn pages() -> Result<Vec<(&'static str, String)>> {
    PAGES.iter().map(|page| Ok((page.path, (page.make)()?))).collect()
}

/// Writes every page.
#[expect(clippy::disallowed_methods, reason = "a chore writes the pages it makes")]
pub(crate) fn run() -> Result<()> {
    for (path, text) in pages()? {
        fs::write(shell::root().join(path), text)
            .with_context(|| format!("cannot write {path}"))?;
        shell::say(path);
    }
    Ok(())
}

/// The program's standard output.
fn lockstep(arguments: &str) -> Result<String> {
    shell::capture(&mut shell::cargo(&format!("run --quiet --package lockstep-cli -- {arguments}")))
}

fn keys() -> Result<String> {
    lockstep("config --markdown")
}

fn commands() -> Result<String> {
    let mut page = String::from(
        "# Commands\n\nThis page is generated from the program's own help; \
         `cargo xtask reference` writes it.\n\n",
    );
    add_command(&mut page, "")?;
    Ok(page)
}

/// The help of a command, then of its subcommands.
fn add_command(page: &mut String, command: &str) -> Result<()> {
    let help = lockstep(&format!("{command} --help"))?;
    let level = 2 + command.split_whitespace().count().min(2);
    let title = format!("lockstep {command}");
    let _ = writeln!(page, "{} `{}`\n", "#".repeat(level), title.trim());
    let _ = writeln!(page, "```text\n{}\n```\n", help.trim_end());
    for name in subcommands(&help) {
        add_command(page, format!("{command} {name}").trim())?;
    }
    Ok(())
}

/// The names below `Commands:`, without `help`.
fn subcommands(help: &str) -> Vec<String> {
    let after = help.split_once("\nCommands:\n").map_or("", |(_, after)| after);
    let list = after.split("\n\n").next().unwrap_or("");
    list.lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| *name != "help")
        .map(ToOwned::to_owned)
        .collect()
}

fn events() -> Result<String> {
    let path = "crates/telemetry/src/event.rs";
    let text = read(path)?;
    let mut page = format!(
        "# Events\n\nThis page is generated from `{path}`; `cargo xtask reference` writes it.\n\n\
         A run writes one JSON object a line to `events.jsonl`. Readers ignore fields that they do \
         not know. The file of a run that resumes begins with the events of the earlier run up to \
         the step it resumes from; steps that were lost are left out.\n\n\
         ## Fields of every event\n\n"
    );
    add_fields(&mut page, &source::item(&text, "struct Stamped")?.fields);
    for event in source::variants(&text, "enum Event")? {
        let _ = writeln!(page, "## `{}`\n\n{}\n", snake_case(&event.name), event.doc);
        add_fields(&mut page, &event.fields);
    }
    Ok(trimmed(&page))
}

fn exit_codes() -> Result<String> {
    let path = "crates/config/src/blame.rs";
    let text = read(path)?;
    let mut page = format!(
        "# Exit codes\n\nThis page is generated from `{path}`; `cargo xtask reference` writes \
         it.\n\n| code | blame | meaning |\n|---|---|---|\n| 0 | | Success. |\n"
    );
    for blame in source::variants(&text, "enum Blame")? {
        let code = text
            .lines()
            .find_map(|line| {
                let (pattern, code) = line.trim().strip_suffix(',')?.split_once(" => ")?;
                let name = pattern.strip_prefix("Self::")?.split('(').next()?;
                (name == blame.name && code.bytes().all(|byte| byte.is_ascii_digit()))
                    .then(|| code.to_owned())
            })
            .with_context(|| format!("{path} has no exit code for {}", blame.name))?;
        let _ = writeln!(page, "| {code} | {} | {} |", snake_case(&blame.name), blame.doc);
    }
    page.push_str("| 101 | | A bug: the program panicked. |\n");
    page.push_str("| 130 | | Ctrl-C; the last line resumes a run that was saved. |\n");
    page.push_str("| 143 | | SIGTERM; the last line resumes a run that was saved. |\n");
    Ok(page)
}

fn manifest() -> Result<String> {
    let path = "crates/checkpoint/src/sharded/manifest.rs";
    let text = read(path)?;
    let mut page = format!(
        "# Checkpoint manifest\n\nThis page is generated from `{path}`; `cargo xtask reference` \
         writes it.\n\nA checkpoint is a folder `step-N` with `manifest.json` and its shards. The \
         manifest is JSON; its last field, `blake3`, is the checksum of the text before it.\n\n"
    );
    for item in source::structs(&text)?.iter().filter(|item| item.is_serialized) {
        let _ = writeln!(page, "## {}\n\n{}\n", item.name, item.doc);
        add_fields(&mut page, &item.fields);
    }
    Ok(trimmed(&page))
}

fn add_fields(page: &mut String, fields: &[Field]) {
    page.push_str("| field | type | meaning |\n|---|---|---|\n");
    for field in fields.iter().filter(|field| !field.is_flattened) {
        let _ = writeln!(page, "| `{}` | {} | {} |", field.name, json_type(&field.ty), field.doc);
    }
    page.push('\n');
}

/// The JSON type of a Rust type, in one word where there is one.
fn json_type(ty: &str) -> String {
    let inner = |prefix: &str| ty.strip_prefix(prefix)?.strip_suffix('>').map(json_type);
    if let Some(ty) = inner("Option<") {
        return format!("{ty} or null");
    }
    if let Some(ty) = inner("Vec<") {
        return format!("list of {ty}");
    }
    if ty.starts_with("BTreeMap<String, ") {
        let value = ty.trim_start_matches("BTreeMap<String, ").trim_end_matches('>');
        return format!("object of {}", json_type(value));
    }
    match ty {
        "u64" | "usize" | "u32" | "i64" => "integer".to_owned(),
        "f64" | "f32" => "number".to_owned(),
        "String" => "string".to_owned(),
        "bool" => "boolean".to_owned(),
        "(u64, u64)" => "pair of integers".to_owned(),
        name => name.to_owned(),
    }
}

fn snake_case(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_uppercase() && !text.is_empty() {
            text.push('_');
        }
        text.extend(c.to_lowercase());
    }
    text
}

/// A page ends with one line break.
fn trimmed(page: &str) -> String {
    page.trim_end().to_owned() + "\n"
}

#[expect(clippy::disallowed_methods, reason = "a chore reads the sources it documents")]
fn read(path: &str) -> Result<String> {
    fs::read_to_string(shell::root().join(path)).with_context(|| format!("cannot read {path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subcommands_are_read_from_help() {
        let help = "About\n\nCommands:\n  train      Train\n             more text\n  data-server  \
                    Serve\n  help       Print\n\nOptions:\n  -h  Help\n";
        assert_eq!(subcommands(help), ["train", "data-server"]);
        assert_eq!(subcommands("About\n\nOptions:\n"), [] as [&str; 0]);
    }

    #[test]
    fn rust_types_have_json_names() {
        assert_eq!(json_type("Option<f64>"), "number or null");
        assert_eq!(json_type("Vec<usize>"), "list of integer");
        assert_eq!(json_type("BTreeMap<String, TensorEntry>"), "object of TensorEntry");
    }

    #[test]
    fn every_event_and_every_exit_code_is_on_its_page() {
        let events = events().unwrap();
        for heading in ["## `run_started`", "## `step`", "## `checkpoint_saved`"] {
            assert!(events.contains(heading), "{heading}");
        }
        assert!(events.contains("| `loss` | number |"));
        let codes = exit_codes().unwrap();
        for row in ["| 2 | user |", "| 3 | peer |", "| 4 | storage |", "| 5 | diverged |"] {
            assert!(codes.contains(row), "{codes}");
        }
        assert!(manifest().unwrap().contains("| `tensors` | object of "));
    }
}
