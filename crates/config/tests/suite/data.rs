//! Data keys: accepted and refused values, and their part in the identity.

use lockstep_config::{
    Documents, Placement, Recipe, Source, Sources, Tokenizer, ValidationSource, resolve,
};

fn with(sets: &[&str]) -> Result<Recipe, String> {
    let sets = sets.iter().map(|set| (*set).to_owned()).collect();
    resolve(&Sources { sets, ..Sources::default() }).map_err(|errors| errors.to_string())
}

fn recipe(sets: &[&str]) -> Recipe {
    with(sets).unwrap_or_else(|errors| panic!("{sets:?}: {errors}"))
}

#[test]
fn a_tokenizer_is_bytes_or_a_path() {
    for name in ["byte", "bytes"] {
        assert_eq!(recipe(&[&format!("data.tokenizer={name}")]).data.tokenizer, Tokenizer::Byte);
    }
    let file = recipe(&["data.tokenizer=my/tokenizer.json", "model.vocab=100"]);
    assert_eq!(file.data.tokenizer, Tokenizer::File("my/tokenizer.json".to_owned()));
}

#[test]
fn validation_is_a_fraction_or_a_path() {
    let of = |value: &str| recipe(&[&format!("data.validation={value}")]).data.validation;
    assert_eq!(of("0.25"), ValidationSource::Fraction(0.25));
    assert_eq!(of("held/out.txt"), ValidationSource::Path("held/out.txt".to_owned()));
    let refused = with(&["data.validation=true"]).unwrap_err();
    assert_eq!(
        refused,
        "data.validation = true is a boolean where a number, or text in quotes, is needed; \
         try 0.05"
    );
}

#[test]
fn every_setting_survives_printing() {
    let all = recipe(&[
        "data.source=text-{rank}.txt",
        "data.placement=local",
        "data.validation=v.txt",
        "data.documents=padded",
        "data.order=sequential",
        "data.last_batch=pad",
    ]);
    let file = Some(("all.toml".to_owned(), all.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(all.clone()));
    assert!(all.data.source.depends_on_rank() && !Source::Bundled.depends_on_rank());
}

#[test]
fn only_settings_that_change_bits_change_the_hash() {
    let plain = Recipe::default();
    let served = recipe(&["data.placement=served", "data.server=10.0.0.1:7777"]);
    assert_eq!(served.data.placement, Placement::Served);
    assert_eq!(served.hash(), plain.hash(), "served batches are those of shared data");
    for set in [
        "data.documents=padded",
        "data.documents=masked",
        "data.order=sequential",
        "data.last_batch=drop",
        "data.last_batch=pad",
        "data.placement=partitioned",
        "data.tokenizer=t.json",
        "data.field=content",
        "data.end_of_document=none",
        "data.validation=v.txt",
    ] {
        assert_ne!(recipe(&[set]).hash(), plain.hash(), "{set}");
    }
}

#[test]
fn local_paths_contain_the_rank_and_served_data_has_an_address() {
    assert_eq!(
        with(&["data.placement=local"]).unwrap_err(),
        "data.source = \"bundled\" has no {rank} in it, which data.placement = \"local\" needs; \
         try a path with {rank}, such as \"text-{rank}.txt\""
    );
    assert_eq!(
        with(&["data.source=a-{rank}.txt"]).unwrap_err(),
        "data.source = \"a-{rank}.txt\" has {rank} in it, which only data.placement = \"local\" \
         fills in; set data.placement = \"local\" or remove it"
    );
    for server in ["", "here", ":80", "here:port", "here:0"] {
        let set = format!("data.server={server}");
        let refused = with(&["data.placement=served", &set]).unwrap_err();
        assert!(refused.contains("is not the host:port of a data server"), "{refused}");
        assert!(refused.ends_with("try \"127.0.0.1:7777\""), "{refused}");
    }
    assert_eq!(
        with(&["data.server=here:80"]).unwrap_err(),
        "data.server = \"here:80\" is not a setting of data.placement = \"shared\"; remove it or \
         set data.placement = \"served\""
    );
}

#[test]
fn masked_documents_need_their_ends_and_sequences_of_their_own_for_pairs() {
    let chat = ["data.format=chat", "data.source=c.jsonl", "data.documents=masked"];
    let refused = |sets: &[&str]| with(sets).expect_err("it is refused");
    assert_eq!(recipe(&chat).data.documents, Documents::Masked);
    assert_eq!(recipe(&[TWO, "data.documents=masked"]).data.documents, Documents::Masked);
    let served = ["data.documents=masked", "data.placement=served", "data.server=here:80"];
    assert!(refused(&served).contains("needs the ends of documents, which a data server"));
    let pairs = refused(&[&chat[..], &["finetune.method=dpo"]].concat());
    assert!(pairs.contains("compares whole sequences; try \"padded\""), "{pairs}");
    let packed = refused(&[chat[0], chat[1], "data.documents=packed"]);
    assert!(packed.contains("attend to each other; try \"masked\" or \"padded\""), "{packed}");
}

#[test]
fn pairs_have_sizes_that_fit() {
    let dpo = ["data.format=chat", "data.source=p.jsonl", "finetune.method=dpo"];
    let sizes = |sets: &[&str]| {
        let Recipe { train, numerics, .. } = recipe(&[&dpo[..], sets].concat());
        (train.batch, train.microbatch_size, numerics.invariant_up_to)
    };
    assert_eq!(sizes(&[]), (8, 2, 4));
    assert_eq!(sizes(&["finetune.lora_rank=8", "train.microbatch=2"]), (8, 2, 4));
    assert_eq!(sizes(&["train.batch=16"]), (16, 2, 8));
    assert_eq!(sizes(&["train.batch=64", "train.microbatch=4"]), (64, 4, 8));
    assert_eq!(sizes(&["numerics.invariant_up_to=2"]), (8, 2, 2));
    let refused = with(&[&dpo[..], &["train.microbatch=3", "train.batch=6"]].concat());
    assert!(refused.unwrap_err().contains("divides pairs of sequences"));
    let printed = recipe(&dpo);
    let file = Some(("dpo.toml".to_owned(), printed.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(printed));
}

#[test]
fn a_mixture_of_conversations_is_refused_once() {
    let refused = with(&[TWO, "data.format=chat"]).unwrap_err();
    assert!(refused.contains("mixtures of conversations are not supported"), "{refused}");
    assert!(refused.contains("one folder") && refused.lines().count() == 1, "{refused}");
}

const TWO: &str = "data.mixture=[{source = \"a.jsonl\", weight = 3}, \
                   {source = \"b\", weight = 0.5, field = \"body\", epochs = 2}]";

#[test]
fn a_mixture_has_weighted_sources_and_survives_printing() {
    let both = recipe(&[TWO, "data.tokenizer_threads=2"]);
    let sources = &both.data.mixture.sources;
    assert_eq!((sources[0].source.as_str(), sources[0].weight), ("a.jsonl", 3.0));
    assert_eq!((sources[1].field.as_str(), sources[1].epochs), ("body", Some(2)));
    let file = Some(("all.toml".to_owned(), both.to_toml()));
    assert_eq!(resolve(&Sources { file, ..Sources::default() }), Ok(both.clone()));
    assert_ne!(both.hash(), Recipe::default().hash());
    assert_eq!(both.hash(), recipe(&[TWO]).hash(), "threads change no bit");
    assert_ne!(both.hash(), recipe(&[TWO, "data.shuffle_buffer=1"]).hash());
    // Without a mixture, its settings change no recorded hash.
    let alone = recipe(&["data.shuffle_buffer=1", "data.tokenizer_threads=2"]);
    assert_eq!(alone.hash(), Recipe::default().hash());
}

#[test]
fn mixtures_that_cannot_be_read_in_one_pass_are_refused() {
    let refused = |sets: &[&str]| with(sets).expect_err("it is refused");
    let ends = "data.mixture=[{source = \"a\", weight = 1, epochs = 1}]";
    assert!(refused(&[ends]).contains("ends: every source has a number of epochs; leave out"));
    let both = refused(&[TWO, "data.source=c.txt"]);
    assert!(
        both.contains("replaces data.source, which is \"c.txt\"; remove data.source"),
        "{both}"
    );
    let held_out = refused(&[TWO, "data.validation=b"]);
    assert!(held_out.contains("has data.validation among its sources"), "{held_out}");
    for (set, why) in [
        ("data.documents=padded", "fills every sequence from one source"),
        ("data.last_batch=drop", "has no last batch"),
        ("data.placement=partitioned", "is read by each worker for its own leaves"),
        ("sync.partition=iid", "has no list of samples to divide"),
        ("sync.mode=gossip", "needs workers that draw their batches in lockstep"),
    ] {
        let text = refused(&[TWO, set]);
        assert!(text.contains(why), "{set}: {text}");
    }
    let zero = refused(&["data.mixture=[{source = \"a\", weight = 0}]"]);
    assert!(zero.contains("data.mixture[0].weight = 0 must be"), "{zero}");
    let none = refused(&["data.mixture=[{weight = 1}]"]);
    assert!(none.contains("has no source"), "{none}");
}

#[test]
fn fill_in_the_middle_needs_a_mixture_and_a_tokenizer_of_subwords() {
    let own = ["data.tokenizer=t.json", "model.vocab=400"];
    let fim = recipe(&[&[TWO, "data.fim_rate=0.5"][..], &own].concat());
    assert_eq!((fim.data.infilling.rate, fim.data.infilling.spm_rate), (0.5, 0.5));
    let bytes = with(&[TWO, "data.fim_rate=0.5"]).unwrap_err();
    assert!(bytes.contains("needs a tokenizer with sentinel tokens"), "{bytes}");
    let alone = with(&[&["data.fim_rate=0.5"][..], &own].concat()).unwrap_err();
    assert!(alone.contains("cuts documents while they are read"), "{alone}");
}
