//! Parameter groups, learning-rate and batch-size schedules, and the target loss.

use lockstep_config::{BatchChange, DecayShape, Milestone, Recipe, Sources, resolve};

fn sets(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..bible_small() }).map_err(|errors| errors.to_string())
}

fn file(text: &str) -> Result<Recipe, String> {
    let file = Some(("a.toml".to_owned(), text.to_owned()));
    resolve(&Sources { file, ..bible_small() }).map_err(|errors| errors.to_string())
}

/// A preset, which outlives a change of the defaults.
fn bible_small() -> Sources {
    Sources { preset: Some("bible-small".to_owned()), ..Sources::default() }
}

const GROUPS: &str = "[[optim.groups]]
match = \"*.bias\"
weight_decay = 0

[[optim.groups]]
match = \"h.0.*\"
lr_scale = 0.5
clip = 2
freeze_after = 100
";

#[test]
fn groups_are_the_same_in_a_file_and_on_a_command_line() {
    let recipe = file(GROUPS).unwrap();
    let inline = "optim.groups=[{match=\"*.bias\",weight_decay=0},\
                  {match=\"h.0.*\",lr_scale=0.5,clip=2,freeze_after=100}]";
    assert_eq!(sets(&[inline]).unwrap(), recipe);
    let [biases, first] = &recipe.optim.groups[..] else { panic!("two groups") };
    assert_eq!((biases.pattern.as_str(), biases.weight_decay), ("*.bias", Some(0.0)));
    assert_eq!((first.lr_scale, first.clip, first.freeze_after), (0.5, Some(2.0), Some(100)));
    assert_eq!(recipe.optim.group_of("h.0.bias"), Some(0), "the first match applies");
    assert_eq!(recipe.optim.group_of("h.0.weight"), Some(1));
    assert_eq!(recipe.optim.group_of("h.1.weight"), None);
}

#[test]
fn lists_survive_printing() {
    let recipe = sets(&[
        "optim.groups=[{match=\"*.bias\",frozen=true},{match=\"*\",unfreeze_at=3}]",
        "train.batch_schedule=[{tokens=100000,batch=32}]",
        "train.target_loss=2.5",
        "optim.schedule=step",
        "optim.drop_at=[0.25, 100]",
        "optim.lr_scaling=sqrt",
    ])
    .unwrap();
    assert_eq!(file(&recipe.to_toml()).unwrap(), recipe);
    assert_eq!(recipe.optim.drop_at, [Milestone::Fraction(0.25), Milestone::Step(100)]);
    assert_eq!(recipe.train.batch_schedule, [BatchChange { tokens: 100_000, batch: 32 }]);
    assert_eq!(recipe.optim.lr_base_batch, 16, "the batch of the recipe");
    let table = toml::Table::try_from(&recipe).expect("a map of tables");
    assert_eq!(table["optim"]["groups"][0]["frozen"].as_bool(), Some(true));
}

#[test]
fn unset_lists_are_not_in_the_identity() {
    let text = sets(&[]).unwrap().identity_text();
    for name in ["groups", "batch_schedule", "target_loss", "drop_at", "lr_base_batch"] {
        assert!(!text.contains(name), "{name}");
    }
    let grouped = sets(&["optim.groups=[{match=\"a\"}]"]).unwrap();
    assert!(grouped.identity_text().contains("optim.groups = [{ match = \"a\" }]\n"));
}

#[test]
fn warm_up_stable_decay_has_its_own_settings() {
    let recipe = sets(&["optim.schedule=wsd", "optim.decay_shape=1-sqrt"]).unwrap();
    assert_eq!(recipe.optim.decay_shape, DecayShape::Sqrt);
    assert_eq!(
        sets(&["optim.decay_fraction=0.3"]).unwrap_err(),
        "optim.decay_fraction = 0.3 is not a setting of optim.schedule = \"cosine\"; remove it or \
         set optim.schedule = \"wsd\""
    );
}

#[test]
fn invalid_groups_are_refused_by_index() {
    let cases = [
        ("optim.groups=[{lr_scale=2}]", "optim.groups[0] = {lr_scale=2} has no match; remove it"),
        (
            "optim.groups=[{match=\"a\"},{match=\"b\",lr_scal=2}]",
            "optim.groups[1].lr_scal = 2 is not one of match, lr_scale, weight_decay, clip, \
             frozen, freeze_after, unfreeze_at; try lr_scale",
        ),
        (
            "optim.groups=[{match=\"a\",clip=-1}]",
            "optim.groups[0].clip = -1 must be at least 0 and at most 1e30; try 0.0",
        ),
        (
            "optim.groups=3",
            "optim.groups = 3 is an integer where a list in brackets is needed; remove it",
        ),
        (
            "optim.groups=[{match=\"a\",frozen=true,freeze_after=3}]",
            "optim.groups[0].freeze_after = 3 belongs to a group that is frozen throughout; \
             remove it, or frozen",
        ),
        (
            "optim.groups=[{match=\"a\",unfreeze_at=3,freeze_after=3}]",
            "optim.groups[0].unfreeze_at = 3 is equal to freeze_after; remove one of them",
        ),
    ];
    for (argument, message) in cases {
        assert_eq!(sets(&[argument]).unwrap_err(), message);
    }
    let text = GROUPS.replace("clip = 2", "clop = 2");
    assert!(file(&text).unwrap_err().contains("optim.groups[1].clop = 2 is not one of match"));
}

#[test]
fn batches_obey_the_rules_of_the_batch_at_every_size() {
    let cases = [
        (
            "train.batch_schedule=[{tokens=0,batch=32}]",
            "train.batch_schedule[0].batch = 32 at tokens = 0 is not train.batch = 16; try 16 or \
             train.batch = 32",
        ),
        (
            "train.batch_schedule=[{tokens=100,batch=32},{tokens=100,batch=64}]",
            "train.batch_schedule[1].tokens = 100 does not come after the 100 of the entry before \
             it; try 200",
        ),
        (
            "train.batch_schedule=[{tokens=100,batch=40}]",
            "train.batch_schedule[0].batch = 40 is not a multiple of train.microbatch = 2 times \
             numerics.invariant_up_to = 8; try 32",
        ),
        (
            "train.batch_schedule=[{tokens=100}]",
            "train.batch_schedule[0] = {tokens=100} has no batch; remove it",
        ),
    ];
    for (argument, message) in cases {
        assert_eq!(sets(&[argument]).unwrap_err(), message);
    }
    let fine = "train.batch_schedule=[{tokens=0,batch=16},{tokens=1000000,batch=32}]";
    assert_eq!(sets(&[fine]).unwrap().batch_plan().stages.len(), 2);
}

#[test]
fn invalid_targets_and_schedules_are_refused() {
    let cases: [(&[&str], &str); 4] = [
        (
            &["train.target_loss=2", "train.eval_every=0"],
            "train.target_loss = 2.0 is checked at validations, and train.eval_every = 0 has none \
             before the end; try train.eval_every = 60",
        ),
        (
            &["optim.schedule=step", "optim.drop_at=[601]"],
            "optim.drop_at[0] = 601 is after the last step, train.steps = 600; try 0.5",
        ),
        (
            &["optim.schedule=step", "optim.drop_at=[1.5]"],
            "optim.drop_at[0] = 1.5 must be above 0 and below 1; try [0.5, 0.75]",
        ),
        (
            &["optim.schedule=wsd", "optim.decay_fraction=0.95"],
            "optim.decay_fraction = 0.95 begins inside the warm-up of 60 steps with train.steps = \
             600; try 0.900 or less, or a shorter optim.warmup_steps",
        ),
    ];
    for (arguments, message) in cases {
        assert_eq!(sets(arguments).unwrap_err(), message);
    }
}
