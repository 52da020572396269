//! Keys that were renamed: the old name is refused with the new one.
//!
//! No old name is accepted as an alias. The hash of a recipe still counts a key under its first
//! name, so that runs recorded before a rename stay comparable.

/// Old and new name of every renamed key.
const RENAMED: &[(&str, &str)] = &[
    ("compress.force", "compress.allow_biased"),
    ("compress.levels", "compress.overrides"),
    ("data.last", "data.last_batch"),
    ("emulate.lane_ms", "emulate.microbatch_ms"),
    ("federated.combine", "federated.aggregation"),
    ("federated.late", "federated.late_fraction"),
    ("federated.least_steps", "federated.min_steps_fraction"),
    ("federated.liars", "federated.assumed_byzantine"),
    ("federated.noise", "federated.noise_multiplier"),
    ("federated.secure", "federated.secure_aggregation"),
    ("federated.server_second", "federated.server_beta2"),
    ("federated.window", "federated.max_delay_rounds"),
    ("optim.trust", "optim.trust_coefficient"),
    ("parallel.shares", "parallel.leaf_shares"),
    ("parallel.stages", "parallel.stage_layers"),
    ("sync.alpha", "sync.dirichlet_alpha"),
    ("sync.beyond", "sync.stale_gradients"),
    ("sync.close_after_ms", "sync.quorum_timeout_ms"),
    ("sync.combine", "sync.aggregation"),
    ("sync.delay", "sync.gradient_delay"),
    ("sync.hot_every", "sync.row_cache_every"),
    ("sync.hot_rows", "sync.row_cache"),
    ("sync.late", "sync.late_gradients"),
    ("sync.liars", "sync.assumed_byzantine"),
    ("sync.patience", "sync.straggler_window"),
    ("sync.rows_by", "sync.row_sharding"),
    ("sync.slack", "sync.straggler_factor"),
    ("sync.spike", "sync.switch_on_loss_spike"),
    ("sync.spread_age", "sync.replicated_rows_age"),
    ("sync.spread_rows", "sync.replicated_rows"),
    ("sync.switch_after", "sync.switch_to_sync_after"),
    ("sync.synchronous", "sync.synchronous_fraction"),
];

/// The present name of a key that was renamed.
pub(crate) fn present_name(old: &str) -> Option<&'static str> {
    RENAMED.iter().find(|(former, _)| *former == old).map(|(_, present)| *present)
}

/// The name under which the hash of a recipe counts a key: its first one.
pub(crate) fn first_name(name: &'static str) -> &'static str {
    RENAMED.iter().find(|(_, present)| *present == name).map_or(name, |(former, _)| *former)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Blame, Sources, keys, resolve};

    fn refusal(sources: &Sources) -> String {
        let errors = resolve(sources).expect_err("an old name is refused");
        assert_eq!((errors.blame(), errors.errors.len()), (Blame::User, 1), "{errors}");
        assert_eq!(errors.blame().exit_code(), 2);
        errors.to_string()
    }

    #[test]
    fn present_names_are_keys_and_old_names_are_not() {
        for (old, present) in RENAMED {
            assert!(keys::find(present).is_some(), "{present}");
            assert!(keys::find(old).is_none(), "{old}");
            assert_eq!((present_name(old), first_name(present)), (Some(*present), *old));
        }
        assert!(RENAMED.is_sorted());
    }

    #[test]
    fn every_source_refuses_an_old_name_with_the_present_one() {
        for (old, present) in RENAMED {
            let line = format!("{old} was renamed; use {present}");
            let set = Sources { sets: vec![format!("{old}=1")], ..Sources::default() };
            assert_eq!(refusal(&set), line);
            let (table, leaf) = old.split_once('.').expect("a table and a name");
            let file = |text: String| Sources {
                file: Some(("a.toml".into(), text)),
                ..Sources::default()
            };
            assert_eq!(
                refusal(&file(format!("[{table}]\n{leaf} = 1"))),
                format!("a.toml:2: {line}")
            );
            assert_eq!(refusal(&file(format!("{old} = 1"))), format!("a.toml:1: {line}"));
            let inline =
                Sources { sets: vec![format!("{table}={{{leaf}=1}}")], ..Sources::default() };
            assert_eq!(refusal(&inline), line);
        }
    }

    #[test]
    fn the_hash_counts_first_names_and_the_identity_shows_present_ones() {
        let sources = Sources { preset: Some("federated".into()), ..Sources::default() };
        let recipe = resolve(&sources).expect("a preset");
        let text = recipe.identity_text();
        assert!(RENAMED.iter().all(|(old, _)| !text.contains(&format!("{old} = "))));
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| line.split_once(" = ").expect("a key and a value"))
            .map(|(name, value)| (keys::find(name).expect("a key"), value))
            .map(|(key, value)| format!("{} = {value}\n", first_name(key.name)))
            .collect();
        lines.sort();
        assert_eq!(recipe.hash(), blake3::hash(lines.concat().as_bytes()).to_hex().to_string());
    }
}
