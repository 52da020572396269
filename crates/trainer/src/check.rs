//! Checks of a run before any worker starts.
//!
//! Workers repeat them, since each opens its own device and data; an error found here costs one
//! process instead of a cluster. Nothing is written.

use crate::checkpoint_dir::earlier_recipe;
use crate::task_evaluation::TaskRequests;
use crate::{Options, RunFolder, TrainError, device};
use crate::{pretrained, restore, teacher};
use lockstep_checkpoint::sharded::Store;
use lockstep_comm::Comm;
use lockstep_config::{Placement, Recipe, nearest};
use lockstep_data::{DataRank, Feed};
use lockstep_model::problem::sample_bytes;
use lockstep_model::{Blueprint, describe};
use lockstep_parallel::from_recipe::phases_of;
use lockstep_parallel::strategies::with_chosen_settings;
use lockstep_platform::{FileKind, World};
use std::fmt::Write as _;
use std::path::Path;

/// Refuses a run that could not start: missing instructions, unreadable data, an unusable
/// checkpoint or pretrained model, or an occupied run folder. Returns the largest number of corpus
/// bytes that any worker holds.
pub fn check(recipe: &Recipe, world: &World, options: &Options) -> Result<usize, TrainError> {
    let recipe = &*with_chosen_settings(recipe, || earlier_recipe(options, world));
    let held_bytes = check_inputs(recipe, world)?;
    let done = if let Some(dir) = &options.resume {
        restore::open(dir, recipe, world)?.step()
    } else {
        pretrained::check(recipe, world)?;
        refuse_other_checkpoints(recipe, world)?;
        0
    };
    let requested = options.stop_after.map_or(recipe.train.steps, |n| n.min(recipe.train.steps));
    if done >= requested {
        return Err(TrainError::NothingToDo { done, requested });
    }
    refuse_file_at_checkpoint_dir(recipe, world)?;
    RunFolder::planned(recipe, world)?;
    Ok(held_bytes)
}

/// Refuses to start a new run among the checkpoints of another.
fn refuse_other_checkpoints(recipe: &Recipe, world: &World) -> Result<(), TrainError> {
    let dir = &recipe.checkpoint.dir;
    if dir.is_empty() || Store::new(world, Path::new(dir)).steps()?.is_empty() {
        return Ok(());
    }
    Err(TrainError::CheckpointsTaken { dir: dir.clone() })
}

/// Refuses a checkpoint path on which a file blocks the folder. Write permission is checked when
/// the run starts.
fn refuse_file_at_checkpoint_dir(recipe: &Recipe, world: &World) -> Result<(), TrainError> {
    let dir = &recipe.checkpoint.dir;
    let mut ancestors = Path::new(dir).ancestors().filter(|path| !path.as_os_str().is_empty());
    let nearest = ancestors.find_map(|path| Some((path, world.files().metadata(path)?)));
    match nearest {
        Some((file, FileKind::File { .. })) if recipe.checkpoint.is_on() => {
            Err(TrainError::NoPlace { dir: dir.clone(), file: file.display().to_string() })
        }
        _ => Ok(()),
    }
}

/// Checks instructions, parameter groups, data and tasks, without the run's folders. Returns the
/// largest number of bytes of data that a worker holds.
pub fn check_inputs(recipe: &Recipe, world: &World) -> Result<usize, TrainError> {
    device::check(recipe)?;
    groups(recipe, None)?;
    teacher::check(recipe, world)?;
    let num_texts = match recipe.data.placement {
        Placement::Local => recipe.parallel.data,
        Placement::Shared | Placement::Partitioned | Placement::Served => 1,
    };
    let mut held_bytes = 0;
    for worker in 0..num_texts {
        let feed = Feed::open(recipe, world, &DataRank::probe(recipe, worker))?;
        held_bytes = held_bytes.max(feed.held_bytes());
        TaskRequests::of_recipe(recipe, feed.tokenizer(), world)?;
    }
    Ok(held_bytes + sample_bytes(&recipe.model, true))
}

/// Refuses parameter groups that match nothing, and recipes that freeze every parameter.
pub(crate) fn groups(recipe: &Recipe, model: Option<&Blueprint>) -> Result<(), TrainError> {
    let of_family;
    let blueprint = if let Some(model) = model {
        model
    } else {
        of_family = describe(&recipe.model);
        &of_family
    };
    let names: Vec<_> = blueprint.owned_params().map(|(_, param)| param.name.as_str()).collect();
    let groups = recipe.optim.groups.iter().map(|group| &group.pattern).enumerate();
    let groups = groups.map(|(index, pattern)| ("optim.groups", index, pattern));
    let levels = recipe.compress.overrides.iter().map(|level| &level.pattern).enumerate();
    let levels = levels.map(|(index, pattern)| ("compress.overrides", index, pattern));
    for (key, index, pattern) in groups.chain(levels) {
        if !names.iter().any(|name| lockstep_config::matches_pattern(pattern, name)) {
            let (similar, pattern) = (similar(pattern, &names), pattern.clone());
            return Err(TrainError::NoSuchParams { key, index, similar, pattern });
        }
    }
    let phases = phases_of(recipe, blueprint);
    for phase in 0..phases.len() {
        let step = phases.first_step(phase);
        if step < recipe.train.steps && names.iter().all(|name| phases.is_frozen(phase, name)) {
            return Err(TrainError::AllFrozen { step });
        }
    }
    Ok(())
}

/// Parameter names that resemble the pattern.
fn similar(pattern: &str, names: &[&str]) -> String {
    let is_end = |c: char| c == '*' || c == '?';
    let word = pattern.split(is_end).max_by_key(|word| word.len()).unwrap_or_default();
    let pieces = names.iter().flat_map(|&name| {
        let starts = name.match_indices('.').map(|(at, _)| &name[at..]);
        [name].into_iter().chain(starts)
    });
    let piece = nearest(word, pieces).unwrap_or_default();
    let similar = names.iter().filter(|name| name.ends_with(piece)).take(3);
    similar.copied().collect::<Vec<_>>().join(", ")
}

/// Refuses to train when ranks have different recipes, layouts or custom models. Local settings
/// (threads, run folder) may differ.
pub(crate) fn agree_on_recipe(
    recipe: &Recipe,
    model: Option<&Blueprint>,
    class: &str,
    comm: &Comm,
) -> Result<(), TrainError> {
    let Recipe { parallel, checkpoint, emulate, .. } = recipe;
    let mut text =
        format!("{}{parallel:?}{checkpoint:?}{emulate:?}{class}", recipe.identity_text());
    for (block, param) in model.into_iter().flat_map(Blueprint::params) {
        let _ = writeln!(text, "{block} {param:?}");
    }
    let hash = blake3::hash(text.as_bytes());
    let (chunks, _) = hash.as_bytes().as_chunks::<8>();
    let mut all = vec![0; comm.group_size()];
    comm.all_gather(&[u64::from_le_bytes(chunks[0])], &mut all)?;
    match all.iter().position(|other| *other != all[0]) {
        None => Ok(()),
        Some(worker) => Err(TrainError::WorkersDisagree { worker }),
    }
}

#[cfg(test)]
mod tests {
    use super::groups;
    use lockstep_config::{Blame, Sources, resolve};

    fn refusal(text: &str) -> String {
        let sets = vec![format!("optim.groups={text}"), "train.steps=10".to_owned()];
        let recipe = resolve(&Sources { sets, ..Sources::default() }).expect("it resolves");
        let error = groups(&recipe, None).expect_err("it is refused");
        assert_eq!(error.blame(), Blame::User);
        error.to_string()
    }

    #[test]
    fn a_pattern_without_a_match_lists_similar_names() {
        let text = refusal(r#"[{match = "*.weight"}, {match = "*.q_prj.weight"}]"#);
        assert_eq!(
            text,
            "optim.groups[1].match = \"*.q_prj.weight\" matches no parameter of this model; \
             there are model.layers.0.self_attn.q_proj.weight, \
             model.layers.1.self_attn.q_proj.weight, model.layers.2.self_attn.q_proj.weight"
        );
    }

    #[test]
    fn training_nothing_is_refused_at_any_step() {
        let frozen = refusal(r#"[{match = "*", frozen = true}]"#);
        assert!(frozen.starts_with("optim.groups freezes every parameter at step 0;"), "{frozen}");
        let later = refusal(r#"[{match = "*", freeze_after = 9}]"#);
        assert!(later.contains("at step 9;"), "{later}");
    }
}
