//! Selection of micro-batch size, recomputation and activation offload by memory.
//!
//! Larger micro-batches have longer matmuls, which run closer to the processor's peak, and more
//! activations; recomputation saves activations and repeats work; offload saves them too, and takes
//! time where the copies last longer than the work beside them. The fastest combination that fits
//! is chosen, by an estimate that needs no calibration. Results depend on the micro-batch size (not
//! on the others), so all are chosen once, before anything runs, and from then on the recipe has a
//! number.

use super::engine::Memory;
use super::fit::{MemoryBudget, OutOfMemory, check, needed};
use lockstep_config::units::Bytes;
use lockstep_config::{OffloadActivations, Recipe, Recompute};
use lockstep_model::Blueprint;
use lockstep_parallel::from_recipe::{blueprint_of_rank, plan_at};
use lockstep_parallel::{ActivationPlan, Activations};
use std::fmt;

/// Largest micro-batch size that is tried.
const MAX_SEQUENCES: usize = 4096;

/// Rows times width of a micro-batch at which an accelerator takes twice the time per token of a
/// very large one. On an H200 in bf16, eight times the rows made GPT-2 124M (8,192 rows of 768)
/// 1.14 times and a Llama of 1.16 billion parameters (2,048 rows of 2,048) 1.29 times as fast,
/// which is 1.0 and 1.4 million.
const HALF_SPEED_ELEMENTS: f64 = 1_048_576.0;

/// FLOPs of an accelerator in the time of a byte's copy to host memory or back: on an H200 in bf16,
/// the 540 TFLOP/s of a Llama of 1.16 billion parameters over 54 GB/s of pinned memory.
const FLOPS_PER_COPIED_BYTE: f64 = 10_000.0;

/// Rows at which a CPU takes twice the time per token: tiles of the matrix product.
const HALF_SPEED_ROWS: f64 = 32.0;

/// Settings that memory decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Micro-batch size, if it is automatic.
    pub microbatch: Option<usize>,
    /// Recomputation, if it is automatic.
    pub recompute: Option<Recompute>,
    /// Place of activations, if it is automatic.
    pub offload: Option<OffloadActivations>,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let microbatch = self.microbatch.map(|size| format!("train.microbatch = {size}"));
        let recompute = self.recompute.map(|policy| format!("parallel.recompute = {policy}"));
        let offload = self.offload.map(|place| format!("offload.activations = {place}"));
        let all: Vec<String> = microbatch.into_iter().chain(recompute).chain(offload).collect();
        f.write_str(&all.join(" and "))
    }
}

/// Automatic settings, and their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The fastest that fit.
    pub settings: Settings,
    /// Memory that the run takes with them.
    pub needed: Bytes,
    /// Memory that they may take; 0 if unknown.
    pub usable: Bytes,
    /// The next faster ones with the memory that they take, which is too much.
    pub faster: Option<(Settings, Bytes)>,
}

/// Whether memory decides a setting of a recipe.
pub fn is_automatic(recipe: &Recipe) -> bool {
    let Recipe { train, parallel, offload, .. } = recipe;
    train.microbatch_is_auto || parallel.recompute_is_auto || offload.activations_is_auto
}

/// Resolves `auto` of `train.microbatch`, `parallel.recompute` and `offload.activations`: the
/// fastest settings with which every batch of the run makes whole micro-batches, equally many per
/// leaf, and which fit into `room`, also with the fewest workers that the run may have. An error
/// names the smallest need.
pub fn choose(recipe: Recipe, room: MemoryBudget) -> Result<(Recipe, Option<Choice>), OutOfMemory> {
    if !is_automatic(&recipe) {
        return Ok((recipe, None));
    }
    let settings_of = |chosen: &Recipe| {
        let Recipe { train, parallel, offload, .. } = chosen;
        Settings {
            microbatch: recipe.train.microbatch_is_auto.then_some(train.microbatch_size),
            recompute: recipe.parallel.recompute_is_auto.then_some(parallel.recompute),
            offload: recipe.offload.activations_is_auto.then_some(offload.activations),
        }
    };
    let mut faster = None;
    for chosen in candidates(&recipe, room.is_accelerator) {
        let needed = most_needed(&chosen, room);
        let settings = settings_of(&chosen);
        if room.memory == Bytes(0) || needed <= room.memory {
            let choice = Choice { settings, needed, usable: room.memory, faster };
            return Ok((chosen, Some(choice)));
        }
        faster = Some((settings, needed));
    }
    let smallest = smallest(&recipe, room);
    let fewest = smallest.with_workers(smallest.worker_counts()[0]);
    let refused = check(&smallest, room).and_then(|_| check(&fewest, room));
    let error = refused.expect_err("no candidate fits");
    Err(OutOfMemory { smallest: Some(settings_of(&smallest).to_string()), ..error })
}

/// The recipe with the automatic settings that take least memory.
pub fn smallest(recipe: &Recipe, room: MemoryBudget) -> Recipe {
    let candidates = candidates(recipe, room.is_accelerator).into_iter();
    let smallest = candidates.min_by_key(|recipe| most_needed(recipe, room));
    smallest.expect("micro-batches of one sequence are always possible")
}

/// Recipes with every value of the automatic settings, fastest first.
fn candidates(recipe: &Recipe, is_accelerator: bool) -> Vec<Recipe> {
    let batches = recipe.batch_plan().stages;
    let leaves = recipe.num_leaves();
    let is_whole = |microbatch: &usize| {
        batches.iter().all(|stage| stage.batch.is_multiple_of(microbatch * leaves))
    };
    let largest = (recipe.train.batch / leaves).clamp(1, MAX_SEQUENCES);
    let sizes: Vec<usize> = if recipe.train.microbatch_is_auto {
        (1..=largest).rev().filter(|size| *size == 1 || is_whole(size)).collect()
    } else {
        vec![recipe.train.microbatch_size]
    };
    let policies = if recipe.parallel.recompute_is_auto {
        vec![Recompute::None, Recompute::Selective, Recompute::Full]
    } else {
        vec![recipe.parallel.recompute]
    };
    let places = match (recipe.offload.activations_is_auto, is_accelerator) {
        (true, true) => vec![OffloadActivations::None, OffloadActivations::Host],
        // Host memory is that of the device.
        (true, false) => vec![OffloadActivations::None],
        (false, _) => vec![recipe.offload.activations],
    };
    let of = |(size, policy, place)| {
        let mut chosen = recipe.clone();
        (chosen.train.microbatch_size, chosen.train.microbatch_is_auto) = (size, false);
        (chosen.parallel.recompute, chosen.parallel.recompute_is_auto) = (policy, false);
        (chosen.offload.activations, chosen.offload.activations_is_auto) = (place, false);
        chosen
    };
    let pairs = sizes.iter().flat_map(|size| policies.iter().map(|policy| (*size, *policy)));
    let all = pairs.flat_map(|(size, policy)| places.iter().map(move |at| (size, policy, *at)));
    let mut timed: Vec<(f64, Recipe)> =
        all.map(of).map(|chosen| (relative_time(&chosen, is_accelerator), chosen)).collect();
    // Equal times keep the larger micro-batch, the lighter recomputation and no offload first.
    timed.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    timed.into_iter().map(|(_, chosen)| chosen).collect()
}

/// Estimated time per token, relative to a very large micro-batch without recomputation. A pass
/// takes as long as its work or the copies beside it, whichever lasts longer.
fn relative_time(recipe: &Recipe, is_accelerator: bool) -> f64 {
    let (model, policy) = (&recipe.model, recipe.parallel.recompute);
    let rows = (recipe.train.microbatch_size * model.context.max(1)) as f64;
    let half_speed = if is_accelerator {
        HALF_SPEED_ELEMENTS / model.width.max(1) as f64
    } else {
        HALF_SPEED_ROWS
    };
    let blueprint = blueprint_of_rank(recipe, 0);
    let flops = blueprint.flops_per_token();
    let repeated = match policy {
        Recompute::None => 0,
        // Two products of context x head_dim per head and token, half of which the mask leaves.
        Recompute::Selective => 2 * model.context * model.width * model.layers,
        Recompute::Full | Recompute::Every(_) => flops.forward as usize,
    };
    let slower = 1.0 + half_speed / rows;
    let [forward, backward] =
        [flops.forward, flops.backward + repeated as u64].map(|flops| slower * flops as f64);
    let copies = if is_accelerator { copied_bytes(recipe, &blueprint) / rows } else { 0.0 };
    let copies = copies * FLOPS_PER_COPIED_BYTE;
    let whole = (flops.forward + flops.backward).max(1) as f64;
    (forward.max(copies) + backward.max(copies)) / whole
}

/// Bytes of a micro-batch that leave the device, and come back.
fn copied_bytes(recipe: &Recipe, blueprint: &Blueprint) -> f64 {
    let plan = plan_at(recipe, blueprint, 0);
    let activations =
        ActivationPlan { recompute: plan.recompute, offload: plan.offload_activations };
    let all = 0..blueprint.blocks.len();
    let [_, offloaded] = Activations::planned_len(blueprint, plan.microbatch, activations, all);
    (offloaded * size_of::<f32>()) as f64
}

/// Memory of a recipe, with the most and the fewest workers that the run may have.
fn most_needed(recipe: &Recipe, room: MemoryBudget) -> Bytes {
    let of = |recipe: &Recipe| needed(&Memory::of(recipe, &blueprint_of_rank(recipe, 0)), room);
    let [fewest, .., most] = recipe.worker_counts()[..] else { return of(recipe) };
    of(&recipe.with_workers(fewest)).max(of(&recipe.with_workers(most)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Process;
    use lockstep_config::{Sources, resolve};

    fn recipe(microbatch: &str, recompute: &str) -> Recipe {
        let sets = [
            "train.batch=48".to_owned(),
            "numerics.invariant_up_to=4".to_owned(),
            "run.workers=1".to_owned(),
            format!("train.microbatch={microbatch}"),
            format!("parallel.recompute={recompute}"),
        ];
        let preset = Some("bible-small".to_owned());
        let sources = Sources { sets: sets.into(), preset, ..Sources::default() };
        resolve(&sources).expect("a sound recipe")
    }

    fn room(memory: Bytes) -> MemoryBudget {
        let process = Process { start: Bytes(0), text: Bytes(0) };
        MemoryBudget { memory, process, is_accelerator: false }
    }

    fn accelerator(memory: Bytes) -> MemoryBudget {
        MemoryBudget { is_accelerator: true, ..room(memory) }
    }

    fn needs(microbatch: usize, recompute: &str, room: MemoryBudget) -> Bytes {
        let recipe = recipe(&microbatch.to_string(), recompute);
        needed(&Memory::of(&recipe, &blueprint_of_rank(&recipe, 0)), room)
    }

    fn chosen(microbatch: &str, recompute: &str, room: MemoryBudget) -> (usize, Recompute, Choice) {
        let (recipe, choice) = choose(recipe(microbatch, recompute), room).expect("it fits");
        let choice = choice.expect("something is automatic");
        (recipe.train.microbatch_size, recipe.parallel.recompute, choice)
    }

    #[test]
    fn auto_resolves_to_the_largest_size_that_divides_and_fits() {
        let none = room(Bytes(0));
        // Leaves of twelve sequences: their divisors are micro-batch sizes.
        let sizes = [1, 2, 3, 4, 6, 12];
        for (index, microbatch) in sizes.into_iter().enumerate() {
            let needed = needs(microbatch, "none", none);
            let (found, choice) = choose(recipe("auto", "none"), room(needed)).unwrap();
            let choice = choice.unwrap();
            let expected = recipe(&microbatch.to_string(), "none");
            assert_eq!(found, expected);
            assert_eq!(found.hash(), expected.hash());
            assert_eq!((choice.needed, choice.usable), (needed, needed));
            let next = sizes.get(index + 1).map(|size| (Some(*size), needs(*size, "none", none)));
            assert_eq!(choice.faster.map(|(it, bytes)| (it.microbatch, bytes)), next);
        }
        let just_less = Bytes(needs(6, "none", none).0 - 1);
        assert_eq!(chosen("auto", "none", room(just_less)).0, 4);
        assert_eq!(chosen("auto", "none", none).0, 12);
    }

    #[test]
    fn recomputation_is_the_lightest_that_fits_a_given_size() {
        let unknown = accelerator(Bytes(0));
        let bytes = ["none", "selective", "full"].map(|policy| needs(6, policy, unknown));
        assert!(bytes[0] > bytes[1] && bytes[1] > bytes[2], "{bytes:?}");
        let policies = [Recompute::None, Recompute::Selective, Recompute::Full];
        for (policy, bytes) in policies.into_iter().zip(bytes) {
            let (size, found, choice) = chosen("6", "auto", accelerator(bytes));
            assert_eq!((size, found, choice.needed), (6, policy, bytes));
            // It changes no bit, and therefore not the identity of the recipe.
            let (recipe, _) = choose(recipe("6", "auto"), accelerator(bytes)).unwrap();
            assert_eq!(recipe.hash(), self::recipe("6", "none").hash());
        }
    }

    /// Devices from that of one sequence with full recomputation to that of a whole leaf without:
    /// more memory is never slower, and a micro-batch grows before work is repeated for it.
    #[test]
    fn a_larger_device_never_gets_a_slower_choice() {
        let unknown = accelerator(Bytes(0));
        let (least, most) = (needs(1, "full", unknown).0, needs(12, "none", unknown).0);
        let mut last = f64::INFINITY;
        let mut found = Vec::new();
        for part in 0..=20 {
            let memory = Bytes(least + (most - least) * part / 20);
            let (recipe, choice) = choose(recipe("auto", "auto"), accelerator(memory)).unwrap();
            assert!(choice.unwrap().needed <= memory);
            let time = relative_time(&recipe, true);
            assert!(time <= last, "{memory}: {time} after {last}");
            last = time;
            found.push((recipe.train.microbatch_size, recipe.parallel.recompute));
        }
        assert_eq!(found[20], (12, Recompute::None));
        assert!(found.iter().any(|(_, policy)| *policy != Recompute::None), "{found:?}");
        found.dedup();
        assert!(found.len() > 4, "{found:?}");
    }

    #[test]
    fn where_nothing_fits_the_error_has_the_smallest_need() {
        let unknown = accelerator(Bytes(0));
        let least = needs(1, "full", unknown);
        let (recipe, room) = (recipe("auto", "auto"), accelerator(Bytes(least.0 - 1)));
        let error = choose(recipe.clone(), room).expect_err("one byte is missing");
        assert_eq!(error.needed, least);
        assert_eq!(smallest(&recipe, room), self::recipe("1", "full"));
        let text = error.to_string();
        let smallest = "even with train.microbatch = 1 and parallel.recompute = full";
        assert!(text.contains(smallest), "{text}");
    }

    fn offloading(width: usize, recompute: &str, offload: &str) -> Recipe {
        let sets = [
            "model.heads=16".to_owned(),
            format!("model.width={width}"),
            format!("offload.activations={offload}"),
            "run.device=cuda".to_owned(),
            "precision.compute=bf16".to_owned(),
        ];
        let own = ["train.batch=48", "numerics.invariant_up_to=4", "run.workers=1"];
        let own = own.into_iter().chain(["train.microbatch=12"]).map(str::to_owned);
        let recompute = format!("parallel.recompute={recompute}");
        let sets = own.chain([recompute]).chain(sets).collect();
        let preset = Some("bible-small".to_owned());
        resolve(&Sources { sets, preset, ..Sources::default() }).expect("a sound recipe")
    }

    fn settings(recipe: &Recipe) -> (usize, Recompute, OffloadActivations) {
        (recipe.train.microbatch_size, recipe.parallel.recompute, recipe.offload.activations)
    }

    /// The copies of a wide layer's input end before its products, those of a narrow one do not.
    #[test]
    fn offload_takes_time_where_the_work_beside_it_is_short() {
        for (width, is_hidden) in [(64, false), (4096, true)] {
            let [on_device, on_host] = ["none", "host"].map(|place| {
                let recipe = offloading(width, "full", place);
                [true, false].map(|is_accelerator| relative_time(&recipe, is_accelerator))
            });
            assert_eq!(on_host[0] <= on_device[0], is_hidden, "{width}: {on_host:?}");
            assert!(on_host[1] <= on_device[1], "a CPU has no copies beside its work");
        }
    }

    #[test]
    fn offload_is_chosen_where_nothing_fits_without_it() {
        let auto = offloading(4096, "auto", "auto");
        let unknown = accelerator(Bytes(0));
        let (found, _) = choose(auto.clone(), unknown).expect("it fits");
        let enough = (12, Recompute::None, OffloadActivations::None);
        assert_eq!(settings(&found), enough, "nothing leaves without need");
        let tight = accelerator(most_needed(&offloading(4096, "full", "host"), unknown));
        let (found, choice) = choose(auto, tight).expect("it fits");
        assert_eq!(settings(&found), (12, Recompute::Full, OffloadActivations::Host));
        let choice = choice.expect("it is automatic");
        assert_eq!((choice.needed, choice.usable), (tight.memory, tight.memory));
        let text = "parallel.recompute = full and offload.activations = host";
        assert_eq!(choice.settings.to_string(), text);
        // In host memory nothing is gained.
        let (on_cpu, _) = choose(offloading(64, "auto", "auto"), room(Bytes(0))).expect("it fits");
        assert_eq!(on_cpu.offload.activations, OffloadActivations::None);
    }

    #[test]
    fn explicit_settings_are_kept() {
        let explicit = recipe("3", "selective");
        assert_eq!(choose(explicit.clone(), room(Bytes(1))).unwrap(), (explicit, None));
    }
}
