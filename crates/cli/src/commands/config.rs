//! `lockstep config`: the resolved recipe and every key. `lockstep config lints`: settings that are
//! valid but rarely intended.
//!
//! - [`keys`]: one key, table or synonym, and the search
//! - [`import`]: recipes from DeepSpeed configurations

mod import;
mod keys;

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_config::lints::{self, Lint};
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// Print the resolved recipe and every key with meaning, default and allowed values
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep config                          the resolved default recipe and all keys
  lockstep config parallel.tensor          one key: meaning, value, allowed values, synonyms
  lockstep config tp                       the key of a name in another framework
  lockstep config parallel my.toml         a table of keys, with the values of a recipe
  lockstep config --search checkpoint      keys by name, meaning and synonyms
  lockstep config my.toml --toml           the resolved recipe as TOML
  lockstep config --presets                list the presets
  lockstep config --set model.width=256 --json
  lockstep config lints my.toml            lints of a recipe
  lockstep config import ds_config.json --out my.toml   a recipe from a DeepSpeed configuration")]
#[command(args_conflicts_with_subcommands = true)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    recipe: RecipeArguments,
    /// Only this key, table or name of another framework, as parallel.tensor, parallel or tp; may
    /// come before the recipe
    #[arg(conflicts_with_all = ["toml", "presets", "markdown", "search"])]
    key: Option<PathBuf>,
    /// Only keys whose name, meaning or synonyms contain the words; repeatable
    #[arg(long, value_name = "WORD", conflicts_with_all = ["toml", "presets", "markdown"])]
    search: Vec<String>,
    /// Only the resolved recipe, as TOML
    #[arg(long, conflicts_with_all = ["presets", "markdown"])]
    toml: bool,
    /// Only the names of the presets
    #[arg(long, conflicts_with = "markdown")]
    presets: bool,
    /// The reference page of all keys, in Markdown
    #[arg(long)]
    markdown: bool,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(clap::Subcommand)]
enum Command {
    Lints(Lints),
    Import(import::Arguments),
}

/// List every lint with its threshold and source, or those that fire for a recipe
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep config lints                             every lint
  lockstep config lints my.toml                     lints that fire for a recipe
  lockstep config lints --set optim.clip=0 --json   every lint, and whether it fires

Lints never refuse a recipe; `train` prints them as warnings.")]
struct Lints {
    #[command(flatten)]
    recipe: RecipeArguments,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct LintReport {
    id: &'static str,
    condition: &'static str,
    threshold: &'static str,
    advice: &'static str,
    fires: bool,
    message: Option<String>,
}

#[derive(Serialize)]
struct Report {
    recipe_hash: String,
    recipe_toml: String,
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct Key {
    name: String,
    meaning: String,
    default: String,
    allowed: String,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    match &arguments.command {
        Some(Command::Lints(arguments)) => return lints(arguments, world),
        Some(Command::Import(arguments)) => return import::run(arguments, world),
        None => {}
    }
    if arguments.markdown {
        return output::text(&lockstep_config::reference_markdown());
    }
    if arguments.presets {
        return presets(arguments.json);
    }
    if !arguments.search.is_empty() {
        let recipe = arguments.recipe.resolve(world)?;
        return keys::search(&arguments.search, &recipe, arguments.json);
    }
    if let Some((key, recipe)) = keys::split(&arguments.recipe, arguments.key.as_deref(), world) {
        return keys::show(&key, &recipe.resolve(world)?, arguments.json);
    }
    let recipe = arguments.recipe.resolve(world)?;
    if arguments.toml {
        return output::text(&recipe.to_toml());
    }
    let keys: Vec<Key> = lockstep_config::describe_keys()
        .into_iter()
        .map(|key| Key {
            name: key.name.into(),
            meaning: key.meaning,
            default: key.default.into(),
            allowed: key.allowed,
        })
        .collect();
    if arguments.json {
        let (recipe_hash, recipe_toml) = (recipe.hash(), recipe.to_toml());
        return output::json(&Report { recipe_hash, recipe_toml, keys });
    }
    let mut text = format!("# The resolved recipe, {}\n\n{}", recipe.hash(), recipe.to_toml());
    text += "\n# Every key\n";
    for key in keys {
        let Key { name, meaning, default, allowed } = key;
        let _ =
            write!(text, "\n{name}\n    {meaning}\n    default {default}; allowed: {allowed}\n");
    }
    output::text(&text)
}

fn lints(arguments: &Lints, world: &World) -> Result<(), Failure> {
    let findings = lints::findings(&arguments.recipe.resolve(world)?);
    if arguments.json {
        let report = |lint: &'static Lint| {
            let finding = findings.iter().find(|finding| finding.lint.id == lint.id);
            let Lint { id, condition, threshold, advice, .. } = *lint;
            let message = finding.map(ToString::to_string);
            LintReport { id, condition, threshold, advice, fires: finding.is_some(), message }
        };
        return output::json(&lints::all().map(report).collect::<Vec<_>>());
    }
    let mut text = String::new();
    if arguments.recipe.is_default() {
        for lint in lints::all() {
            let Lint { id, condition, threshold, advice, .. } = lint;
            let _ = write!(text, "{id}\n    {condition}\n    when {threshold}\n");
            let _ = writeln!(text, "    {advice}");
        }
        return output::text(&text);
    }
    for finding in &findings {
        let _ = writeln!(text, "{finding}");
    }
    if findings.is_empty() {
        let _ = writeln!(text, "none of {} lints fires for this recipe", lints::all().count());
    }
    output::text(&text)
}

fn presets(json: bool) -> Result<(), Failure> {
    let presets = lockstep_config::presets();
    if json {
        return output::json(&presets);
    }
    let lines = presets.iter().map(|(name, purpose)| format!("{name:<20} {purpose}\n"));
    output::text(&lines.collect::<String>())
}
