//! Recipes from DeepSpeed configurations of three shapes in use, and from malformed ones.

use lockstep_config::import::deepspeed::{Options, import};
use lockstep_config::import::{ImportError, Imported};
use lockstep_config::{
    Dtype, LossScaling, LrSchedule, OffloadState, OptimName, Recipe, Recompute, Sources, WireDtype,
    resolve,
};

fn imported(text: &str) -> Imported {
    imported_for(text, None)
}

fn imported_for(text: &str, workers: Option<usize>) -> Imported {
    import("ds.json", text, Options { workers }).expect("a configuration")
}

/// The recipe of an import; its TOML always resolves.
fn recipe(imported: &Imported) -> Recipe {
    let file = Some(("my.toml".to_owned(), imported.toml.clone()));
    let sources = Sources { file, ..Sources::default() };
    resolve(&sources).unwrap_or_else(|errors| panic!("{errors}\n{}", imported.toml))
}

/// The reason for which a field is not part of the recipe.
fn reason<'a>(imported: &'a Imported, path: &str) -> &'a str {
    let listed: Vec<&str> = imported.unmapped.iter().map(|one| one.path.as_str()).collect();
    let found = imported.unmapped.iter().find(|one| one.path == path);
    &found.unwrap_or_else(|| panic!("{path} is not among {listed:?}")).reason
}

fn is_listed(imported: &Imported, path: &str) -> bool {
    imported.unmapped.iter().any(|one| one.path == path)
}

/// ZeRO-2 with fp16, as the Hugging Face Trainer uses it: most values are its arguments.
const TRAINER: &str = r#"{
  "fp16": {
    "enabled": true,
    "loss_scale": 0,
    "loss_scale_window": 500,
    "initial_scale_power": 12,
    "hysteresis": 2,
    "min_loss_scale": 1
  },
  "optimizer": {
    "type": "AdamW",
    "params": { "lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto" }
  },
  "scheduler": {
    "type": "WarmupLR",
    "params": { "warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto" }
  },
  "zero_optimization": {
    "stage": 2,
    "allgather_partitions": true,
    "allgather_bucket_size": 2e8,
    "overlap_comm": true,
    "reduce_scatter": true,
    "reduce_bucket_size": 2e8,
    "contiguous_gradients": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "steps_per_print": 100,
  "wall_clock_breakdown": false
}"#;

#[test]
fn a_trainer_configuration_keeps_its_values_and_lists_those_of_the_trainer() {
    let imported = imported(TRAINER);
    let recipe = recipe(&imported);
    assert_eq!(recipe.precision.compute, Dtype::F16);
    assert_eq!(recipe.precision.loss_scale, LossScaling::Dynamic);
    assert_eq!(recipe.precision.loss_scale_start.to_string(), "4096");
    assert_eq!(recipe.precision.loss_scale_interval, 500);
    assert_eq!((recipe.parallel.zero, recipe.parallel.overlap), (2, true));
    assert_eq!(recipe.parallel.bucket_bytes.0, 800_000_000);
    assert_eq!(
        (recipe.optim.name, recipe.optim.schedule),
        (OptimName::AdamW, LrSchedule::Constant)
    );
    for (path, key) in [
        ("optimizer.params.lr", "optim.lr"),
        ("optimizer.params.betas", "optim.beta1 and optim.beta2"),
        ("optimizer.params.eps", "optim.eps"),
        ("optimizer.params.weight_decay", "optim.weight_decay"),
        ("scheduler.params.warmup_max_lr", "optim.lr"),
        ("scheduler.params.warmup_num_steps", "optim.warmup_steps"),
        ("gradient_clipping", "optim.clip"),
        ("train_batch_size", "train.batch"),
        ("train_micro_batch_size_per_gpu", "train.microbatch"),
        ("gradient_accumulation_steps", "train.batch"),
    ] {
        assert_eq!(reason(&imported, path), format!("filled in by the Trainer; set {key}"));
    }
    for path in [
        "fp16.hysteresis",
        "fp16.min_loss_scale",
        "zero_optimization.allgather_partitions",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.reduce_scatter",
        "zero_optimization.contiguous_gradients",
        "steps_per_print",
        "scheduler.params.warmup_type",
        "scheduler.params.warmup_min_lr",
    ] {
        assert!(reason(&imported, path).len() > 10, "{path}");
    }
    assert!(!is_listed(&imported, "wall_clock_breakdown"), "it is off");
}

/// ZeRO-3 with bf16, and everything offloaded to the host.
const OFFLOADED: &str = r#"{
  "bf16": { "enabled": true },
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": { "device": "cpu", "pin_memory": true },
    "offload_param": { "device": "cpu", "pin_memory": true },
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": 1048576,
    "stage3_prefetch_bucket_size": 943718,
    "stage3_param_persistence_threshold": 10240,
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "activation_checkpointing": { "partition_activations": true, "cpu_checkpointing": false },
  "communication_data_type": "bfp16",
  "gradient_clipping": 0.5,
  "gradient_accumulation_steps": 4,
  "train_micro_batch_size_per_gpu": 2,
  "train_batch_size": 32,
  "flops_profiler": { "enabled": false, "profile_step": 5 }
}"#;

#[test]
fn an_offloaded_zero_3_configuration_becomes_a_recipe_of_its_workers() {
    let imported = imported(OFFLOADED);
    let recipe = recipe(&imported);
    assert_eq!((recipe.precision.compute, recipe.precision.wire), (Dtype::Bf16, WireDtype::Bf16));
    assert_eq!((recipe.parallel.zero, recipe.parallel.overlap), (3, true));
    assert_eq!(recipe.parallel.recompute, Recompute::Full);
    assert_eq!((recipe.train.batch, recipe.train.microbatch_size), (32, 2));
    assert_eq!(recipe.run.workers, 4, "32 / (2 x 4)");
    assert!((recipe.optim.clip - 0.5).abs() < 1e-12);
    let in_memory = reason(&imported, "zero_optimization.offload_optimizer.device");
    assert!(in_memory.contains("host memory"), "{in_memory}");
    for field in [
        "offload_param.device",
        "offload_param.pin_memory",
        "sub_group_size",
        "stage3_prefetch_bucket_size",
        "stage3_param_persistence_threshold",
        "stage3_max_live_parameters",
        "stage3_max_reuse_distance",
        "stage3_gather_16bit_weights_on_model_save",
    ] {
        assert!(reason(&imported, &format!("zero_optimization.{field}")).len() > 10);
    }
    assert!(is_listed(&imported, "activation_checkpointing.partition_activations"));
    assert!(!is_listed(&imported, "flops_profiler"), "it is off");
    assert!(!is_listed(&imported, "gradient_accumulation_steps"), "it follows");
}

/// Plain data parallelism with Adam and a linear decay.
const PLAIN: &str = r#"{
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 4,
  "steps_per_print": 2000,
  "optimizer": {
    "type": "Adam",
    "params": { "lr": 1e-4, "betas": [0.8, 0.99], "eps": 1e-7, "weight_decay": 3e-7 }
  },
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": {
      "total_num_steps": 5000,
      "warmup_min_lr": 0,
      "warmup_max_lr": 2e-4,
      "warmup_num_steps": 250,
      "warmup_type": "linear"
    }
  },
  "gradient_clipping": 1.0,
  "prescale_gradients": false,
  "zero_optimization": { "stage": 0 }
}"#;

#[test]
fn a_plain_configuration_has_nothing_but_its_logging_listed() {
    let imported = imported(PLAIN);
    let recipe = recipe(&imported);
    let paths: Vec<&str> = imported.unmapped.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(paths, ["steps_per_print"]);
    assert_eq!((recipe.train.steps, recipe.train.batch), (5000, 64));
    assert_eq!((recipe.train.microbatch_size, recipe.parallel.zero), (4, 0));
    let optim = &recipe.optim;
    assert_eq!((optim.name, optim.schedule), (OptimName::AdamW, LrSchedule::Linear));
    let floats = [optim.lr, optim.beta1, optim.beta2, optim.eps, optim.weight_decay, optim.clip];
    assert_eq!(floats.map(f64::to_bits), [2e-4, 0.8, 0.99, 1e-7, 3e-7, 1.0].map(f64::to_bits));
    assert_eq!((optim.warmup_steps, optim.final_lr_fraction.to_bits()), (250, 0.0f64.to_bits()));
    let workers = imported_for(PLAIN, Some(8));
    assert_eq!(self::recipe(&workers).run.workers, 8);
    assert!(
        imported.toml.starts_with("# Recipe from ds.json, a DeepSpeed configuration"),
        "{}",
        imported.toml
    );
    assert!(imported.toml.contains("\nzero = 0  # zero_optimization.stage\n"), "{}", imported.toml);
}

#[test]
fn defaults_of_deepspeed_are_written_out() {
    let text = r#"{"optimizer": {"type": "Adam", "params": {"adam_w_mode": false}},
                   "zero_optimization": {"stage": 1}, "fp16": {"enabled": true}}"#;
    let recipe = recipe(&imported(text));
    assert_eq!((recipe.optim.name, recipe.optim.schedule), (OptimName::Adam, LrSchedule::Constant));
    let optim = &recipe.optim;
    let floats = [optim.lr, optim.beta1, optim.beta2, optim.eps, optim.weight_decay];
    assert_eq!(floats.map(f64::to_bits), [1e-3, 0.9, 0.999, 1e-8, 0.0].map(f64::to_bits));
    assert_eq!((optim.warmup_steps, recipe.precision.loss_scale_interval), (0, 1000));
    assert_eq!((recipe.parallel.zero, recipe.parallel.overlap), (1, false));
}

#[test]
fn optimizers_and_schedules_have_counterparts_or_are_listed() {
    let optimizer = |text: &str| recipe(&imported(&format!("{{\"optimizer\": {text}}}"))).optim;
    assert_eq!(optimizer(r#"{"type": "Lamb", "params": {"lr": 0.01}}"#).name, OptimName::Lamb);
    assert_eq!(optimizer(r#"{"type": "SGD", "params": {"lr": 0.1}}"#).name, OptimName::Sgd);
    let momentum = optimizer(r#"{"type": "SGD", "params": {"lr": 0.1, "momentum": 0.8}}"#);
    assert_eq!(
        (momentum.name, momentum.momentum.to_bits()),
        (OptimName::Momentum, 0.8f64.to_bits())
    );
    let lion = optimizer(r#"{"type": "Lion", "params": {"lr": 1e-4, "betas": [0.95, 0.98]}}"#);
    assert_eq!((lion.name, lion.beta2.to_bits()), (OptimName::Lion, 0.98f64.to_bits()));
    let nesterov = r#"{"type": "SGD", "params": {"momentum": 0.8, "nesterov": true}}"#;
    assert_eq!(optimizer(nesterov).name, OptimName::Nesterov);
    let muon = imported(r#"{"optimizer": {"type": "Muon", "params": {"lr": 0.02}}}"#);
    assert!(reason(&muon, "optimizer.type").contains("learning rate of AdamW"));
    let adafactor = imported(r#"{"optimizer": {"type": "Adafactor", "params": {"lr": 0.02}}}"#);
    assert!(reason(&adafactor, "optimizer.type").contains("an absolute learning rate"));
    let shampoo = imported(r#"{"optimizer": {"type": "Shampoo", "params": {"lr": 0.02}}}"#);
    assert!(reason(&shampoo, "optimizer.type").contains("no such optimizer"));
    let one_bit = r#"{"gradient_clipping": 1.0, "optimizer": {"type": "OneBitAdam",
                      "params": {"lr": 1e-3, "freeze_step": 40, "cuda_aware": false}}}"#;
    let one_bit = imported(one_bit);
    assert!(reason(&one_bit, "gradient_clipping").contains("unclipped"));
    let one_bit = recipe(&one_bit);
    assert_eq!(
        (one_bit.compress.method.name(), one_bit.compress.warmup_steps),
        ("one-bit-adam", 40)
    );

    let cosine = r#"{"scheduler": {"type": "WarmupCosineLR",
                     "params": {"total_num_steps": 2000, "warmup_num_steps": 10,
                                "cos_min_ratio": 0.05}}}"#;
    let cosine = recipe(&imported(cosine));
    assert_eq!(cosine.optim.schedule, LrSchedule::Cosine);
    assert_eq!((cosine.train.steps, cosine.optim.warmup_steps), (2000, 10));
    assert_eq!(cosine.optim.final_lr_fraction.to_bits(), 0.05f64.to_bits());
    let without_end =
        |name: &str| imported(&format!(r#"{{"scheduler": {{"type": "{name}", "params": {{}}}}}}"#));
    for name in ["WarmupDecayLR", "WarmupCosineLR"] {
        let imported = without_end(name);
        assert_eq!(reason(&imported, "scheduler.params.total_num_steps"), "set train.steps");
    }
    let constant = without_end("WarmupLR");
    assert!(!is_listed(&constant, "scheduler.params.total_num_steps"), "it has no such field");
    let cycle = imported(r#"{"scheduler": {"type": "OneCycle", "params": {}}}"#);
    assert!(reason(&cycle, "scheduler.type").contains("no such schedule"));
}

#[test]
fn state_on_nvme_is_offloaded_to_files() {
    let text = r#"{"zero_optimization": {"stage": 1, "overlap_comm": false, "offload_optimizer":
                   {"device": "nvme", "nvme_path": "/disk", "buffer_count": 4}}}"#;
    let imported = imported(text);
    let recipe = recipe(&imported);
    assert_eq!(recipe.offload.state, OffloadState::File);
    assert_eq!(recipe.offload.folder, "/disk");
    assert!(is_listed(&imported, "zero_optimization.offload_optimizer.buffer_count"));
}

#[test]
fn batch_sizes_that_leave_the_workers_open_are_computed_and_noted() {
    let text = r#"{"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}"#;
    let open = imported(text);
    let workers = Recipe::default().run.workers;
    assert_eq!(recipe(&open).train.batch, 4 * 2 * workers);
    assert!(reason(&open, "train_batch_size").contains("--workers"));
    let eight = imported_for(text, Some(8));
    assert_eq!((recipe(&eight).train.batch, recipe(&eight).run.workers), (64, 8));
    assert!(eight.unmapped.is_empty(), "{:?}", eight.unmapped);

    let odd = imported(r#"{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3}"#);
    let odd = recipe(&odd);
    assert_eq!((odd.train.batch, odd.train.microbatch_size, odd.num_leaves()), (12, 3, 4));
    let prime = recipe(&imported(r#"{"train_batch_size": 7}"#));
    assert_eq!((prime.train.batch, prime.num_leaves()), (7, 1));
    let wrong = r#"{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4,
                    "gradient_accumulation_steps": 1}"#;
    let wrong = imported(wrong);
    assert!(is_listed(&wrong, "train_batch_size"));
    recipe(&wrong);
}

#[test]
fn settings_that_a_rule_refuses_are_left_out_and_listed() {
    let text = r#"{"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 900000}},
                   "gradient_clipping": -3.0, "fp16": {"enabled": true, "loss_scale": 1000}}"#;
    let imported = imported(text);
    recipe(&imported);
    assert!(reason(&imported, "gradient_clipping").contains("must be at least 0"));
    assert!(reason(&imported, "scheduler.params.warmup_num_steps").contains("train.steps"));
    assert!(reason(&imported, "fp16.loss_scale").contains("power of two"));
}

#[test]
fn unknown_fields_are_listed_with_their_path() {
    let text = r#"{"warp": 9, "fp16": {"enabled": true, "warp": 1},
                   "zero_optimization": {"warp": [1, 2]}}"#;
    let imported = imported(text);
    for path in ["warp", "fp16.warp", "zero_optimization.warp"] {
        assert_eq!(reason(&imported, path), "not a field that the import knows");
    }
}

#[test]
fn text_that_is_no_configuration_is_refused() {
    let error = |text: &str| import("a.json", text, Options::default()).unwrap_err();
    assert!(matches!(error("{\n\"a\": }"), ImportError::NotJson { line: 2, .. }));
    assert!(matches!(error(""), ImportError::NotJson { line: 1, .. }));
    assert_eq!(error("[]"), ImportError::NotAnObject { found: "a list" });
    let workers = import("a.json", "{}", Options { workers: Some(0) }).unwrap_err();
    assert_eq!(workers.to_string(), "0 workers are out of range; try a number from 1 to 64");
    let empty = imported("{}");
    assert!(empty.unmapped.is_empty());
    assert_eq!(recipe(&empty), Recipe::default());
}
