//! Low-rank adapters: refused settings, the identity, and folders that decide them.

use lockstep_config::{
    AdapterFolder, Lora, LoraTarget, LoraTargets, Recipe, Sources, resolve, resolve_with_folders,
};

fn sources(sets: &[&str]) -> Sources {
    Sources { sets: sets.iter().map(|set| (*set).to_owned()).collect(), ..Sources::default() }
}

fn refused(sets: &[&str]) -> String {
    resolve(&sources(sets)).expect_err("a refusal").to_string()
}

#[test]
fn defaults_are_those_of_peft_and_change_no_hash() {
    let recipe = Recipe::default();
    let Lora { rank, alpha, dropout, targets, .. } = recipe.model.lora;
    assert_eq!((rank, alpha, dropout), (0, 8.0, 0.0));
    let names: Vec<&str> = targets.iter().map(LoraTarget::name).collect();
    assert_eq!(names, ["q_proj", "v_proj"]);
    let repeated = resolve(&sources(&["finetune.lora_alpha=8", "finetune.lora_dropout=0"]));
    assert_eq!(repeated.unwrap().hash(), recipe.hash(), "there are no adapters");
    let adapted = resolve(&sources(&["finetune.lora_rank=2"])).unwrap();
    let other = resolve(&sources(&["finetune.lora_rank=2", "finetune.lora_alpha=3"])).unwrap();
    assert!(recipe.hash() != adapted.hash() && adapted.hash() != other.hash());
    assert!((adapted.model.lora.scale() - 4.0).abs() < f32::EPSILON);
}

#[test]
fn settings_without_meaning_are_refused() {
    let gpt2 = refused(&["model.family=gpt2", "finetune.lora_rank=2"]);
    assert!(gpt2.contains("is not a setting of model.family = \"gpt2\""), "{gpt2}");
    let nothing = refused(&["finetune.lora_rank=2", "finetune.lora_targets=[]"]);
    assert!(nothing.contains("names no layer"), "{nothing}");
    let other = refused(&["finetune.lora_targets=[\"c_attn\"]"]);
    assert!(other.contains("finetune.lora_targets[0]") && other.contains("q_proj"), "{other}");
    for set in ["finetune.lora_alpha=3", "finetune.lora_dropout=0.5"] {
        let unused = refused(&[set]);
        assert!(unused.contains("has no effect without adapters"), "{unused}");
        assert!(unused.contains("try finetune.lora_rank = 8"), "{unused}");
    }
    let unused = refused(&["finetune.lora_targets=[\"q_proj\"]"]);
    assert!(unused.contains("has no effect without adapters"), "{unused}");
    let alone = refused(&["finetune.adapter=folder"]);
    assert!(alone.contains("needs finetune.lora_rank"), "{alone}");
    let served = refused(&["finetune.lora_rank=2", "sync.mode=parameter-server", "run.workers=2"]);
    assert!(served.contains("finetune.lora_rank = 2"), "{served}");
}

#[test]
fn all_linear_stands_for_the_list_of_all_linear_layers() {
    let names = r#"["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]"#;
    let with = |targets: &str| {
        let targets = format!("finetune.lora_targets={targets}");
        resolve(&sources(&["finetune.lora_rank=2", &targets])).unwrap()
    };
    let all = with("all-linear");
    assert_eq!(all.model.lora.targets, LoraTargets::ALL);
    assert_eq!(all.hash(), with(names).hash());
    assert!(all.to_toml().contains(&format!("lora_targets = {names}\n")), "{}", all.to_toml());
    let other = refused(&["finetune.lora_rank=2", "finetune.lora_targets=c_attn"]);
    assert!(other.contains("a list in brackets or \"all-linear\" is needed"), "{other}");
}

#[test]
fn an_adapter_folder_decides_all_keys_but_the_dropout() {
    let targets = [LoraTarget::Down, LoraTarget::Key].into_iter().collect();
    let lora = Lora { rank: 5, alpha: 7.5, dropout: 0.25, targets, ..Lora::NONE };
    let folder = AdapterFolder { name: "a/adapter_config.json".into(), lora: lora.to_toml() };
    let with = |sets: &[&str]| resolve_with_folders(&sources(sets), None, Some(&folder), None);
    assert_eq!(with(&[]).unwrap().model.lora, lora);
    let targets = "finetune.lora_targets=[\"down_proj\", \"k_proj\"]";
    let dropout = with(&["finetune.lora_dropout=0.1", "finetune.lora_rank=5", targets]).unwrap();
    assert_eq!(dropout.model.lora, Lora { dropout: 0.1, ..lora });
    let error = with(&["finetune.lora_rank=4"]).expect_err("another rank").to_string();
    assert!(error.contains("contradicts a/adapter_config.json, which has 5"), "{error}");
}

#[test]
fn frozen_weights_in_four_bits_need_adapters_and_whole_blocks() {
    let without = refused(&["finetune.quant_type=nf4"]);
    assert!(without.contains("there are no adapters to train"), "{without}");
    assert!(without.contains("try finetune.lora_rank = 8"), "{without}");
    let unused = refused(&["finetune.lora_rank=2", "finetune.double_quant=false"]);
    assert!(unused.contains("has no effect without quantised weights"), "{unused}");
    let nf4 = |sets: &[&str]| {
        let all = [&["finetune.lora_rank=2", "finetune.quant_type=nf4"], sets].concat();
        resolve(&sources(&all)).map_err(|errors| errors.to_string())
    };
    let recipe = nf4(&[]).expect("width 64");
    assert!(recipe.model.lora.is_quantised() && recipe.model.lora.double_quant);
    let other = nf4(&["finetune.double_quant=false"]).expect("single scales");
    let plain = resolve(&sources(&["finetune.lora_rank=2"])).expect("no quantisation");
    assert!(recipe.hash() != other.hash() && recipe.hash() != plain.hash());
    let width = nf4(&["model.width=96", "model.heads=2"]).expect_err("a block and a half");
    assert!(width.contains("gives rows of 96 weights") && width.contains("128"), "{width}");
    let ffn = nf4(&["model.ffn=100"]).expect_err("no whole blocks");
    assert!(ffn.contains("model.ffn = 128"), "{ffn}");
    let sharded = ["parallel.tensor=2", "run.workers=2", "model.ffn=256"];
    let error = nf4(&sharded).expect_err("32 inputs of the output projection in each shard");
    assert!(error.contains("2 tensor shards") && error.contains("model.heads = 8"), "{error}");
    assert!(nf4(&[&sharded[..], &["model.heads=8", "model.head_dim=16"]].concat()).is_ok());
}

#[test]
fn a_folder_leaves_the_format_of_frozen_weights_to_the_recipe() {
    let lora = Lora { rank: 5, ..Lora::NONE };
    let folder = AdapterFolder { name: "a/adapter_config.json".into(), lora: lora.to_toml() };
    let sets = ["finetune.quant_type=nf4", "finetune.double_quant=false"];
    let recipe = resolve_with_folders(&sources(&sets), None, Some(&folder), None).expect("nf4");
    assert!(recipe.model.lora.is_quantised() && !recipe.model.lora.double_quant);
}
