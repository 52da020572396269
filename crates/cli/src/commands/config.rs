//! `lockstep config`: the resolved recipe, and every key with its meaning.

use crate::failure::Failure;
use crate::output;
use crate::recipe_args::RecipeArguments;
use lockstep_platform::World;
use serde::Serialize;
use std::fmt::Write;

/// Print the resolved recipe and every key with meaning, default and allowed values
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep config                          the default recipe, resolved, and all keys
  lockstep config my.toml --toml           only the recipe, ready to be a file of its own
  lockstep config --presets                the named recipes
  lockstep config --set model.width=256 --json")]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
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
    if arguments.markdown {
        return output::text(&lockstep_config::reference_markdown());
    }
    if arguments.presets {
        return presets(arguments.json);
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

fn presets(json: bool) -> Result<(), Failure> {
    let presets = lockstep_config::presets();
    if json {
        return output::json(&presets);
    }
    let lines = presets.iter().map(|(name, purpose)| format!("{name:<20} {purpose}\n"));
    output::text(&lines.collect::<String>())
}
