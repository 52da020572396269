//! Parameters that were renamed: the old name is refused with the new one.

/// Experiment, old and new name of every renamed parameter.
const RENAMED: &[(&str, &str, &str)] = &[
    ("best-local-steps", "flat", "flat_curvature"),
    ("bounded-async", "most", "max_iterations"),
    ("federated-drift", "pull", "proximal_mu"),
    ("heterogeneous", "cap", "max_share"),
    ("moe-routing", "top", "top_k"),
    ("scaling", "alone", "compute"),
    ("staleness-aware", "ages", "age_distribution"),
    ("zero-memory", "room", "memory"),
];

/// The present name of a renamed parameter of an experiment.
pub(crate) fn present_name(experiment: &str, old: &str) -> Option<&'static str> {
    let is_it = |(of, former, _): &&(&str, &str, &str)| *of == experiment && *former == old;
    RENAMED.iter().find(is_it).map(|(.., present)| *present)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Settings, experiments};

    #[test]
    fn old_names_are_refused_with_the_present_ones() {
        assert!(RENAMED.is_sorted());
        for (experiment, old, present) in RENAMED {
            let description = experiments::find(experiment).expect("an experiment").description();
            assert!(description.param(present).is_some(), "{experiment} {present}");
            assert!(description.param(old).is_none(), "{experiment} {old}");
            let mut settings = Settings::defaults(description);
            let error = settings.assign(description, &format!("{old}=1")).unwrap_err().to_string();
            assert!(error.ends_with(&format!("it was renamed; use {present}")), "{error}");
        }
        assert_eq!(present_name("scaling", "cap"), None, "of another experiment");
    }
}
