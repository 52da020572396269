//! Names and values of other frameworks: refused, with the key or setting of the same meaning.

use lockstep_config::{Sources, resolve};

/// The one error of a `--set` argument.
fn error_of(argument: &str) -> String {
    let sources = Sources { sets: vec![argument.to_owned()], ..Sources::default() };
    let errors = resolve(&sources).expect_err(argument).errors;
    assert_eq!(errors.len(), 1, "{errors:?}");
    errors[0].to_string()
}

/// Names that the error of `--set name=2` answers with `did you mean key?`.
const KEYS: &[(&str, &str)] = &[
    ("tp", "parallel.tensor"),
    ("pp", "parallel.pipeline"),
    ("dp", "parallel.data"),
    ("vpp", "parallel.virtual_stages"),
    ("sp", "parallel.sequence"),
    ("zero_stage", "parallel.zero"),
    ("zero_optimization.stage", "parallel.zero"),
    ("activation_checkpointing", "parallel.recompute"),
    ("gradient_checkpointing", "parallel.recompute"),
    ("recompute", "parallel.recompute"),
    ("overlap_comm", "parallel.overlap"),
    ("lr", "optim.lr"),
    ("learning_rate", "optim.lr"),
    ("weight_decay", "optim.weight_decay"),
    ("wd", "optim.weight_decay"),
    ("adam_beta1", "optim.beta1"),
    ("adam_epsilon", "optim.eps"),
    ("warmup", "optim.warmup_steps"),
    ("warmup_steps", "optim.warmup_steps"),
    ("warmup_iters", "optim.warmup_steps"),
    ("clip", "optim.clip"),
    ("max_grad_norm", "optim.clip"),
    ("gradient_clipping", "optim.clip"),
    ("momentum", "optim.momentum"),
    ("optimizer", "optim.name"),
    ("scheduler", "optim.schedule"),
    ("lr_scheduler_type", "optim.schedule"),
    ("hidden_size", "model.width"),
    ("d_model", "model.width"),
    ("n_embd", "model.width"),
    ("num_layers", "model.layers"),
    ("n_layer", "model.layers"),
    ("num_hidden_layers", "model.layers"),
    ("num_heads", "model.heads"),
    ("num_attention_heads", "model.heads"),
    ("num_key_value_heads", "model.kv_heads"),
    ("intermediate_size", "model.ffn"),
    ("vocab_size", "model.vocab"),
    ("seq_len", "model.context"),
    ("seq_length", "model.context"),
    ("block_size", "model.context"),
    ("max_seq_len", "model.context"),
    ("max_position_embeddings", "model.context"),
    ("dropout", "model.dropout"),
    ("tie_word_embeddings", "model.tied"),
    ("rope_theta", "model.rope_theta"),
    ("max_steps", "train.steps"),
    ("num_steps", "train.steps"),
    ("train_iters", "train.steps"),
    ("micro_batch_size", "train.microbatch"),
    ("per_device_train_batch_size", "train.microbatch"),
    ("global_batch_size", "train.batch"),
    ("train_batch_size", "train.batch"),
    ("seed", "train.seed"),
    ("eval_steps", "train.eval_every"),
    ("save_steps", "checkpoint.every"),
    ("save_interval", "checkpoint.every"),
    ("checkpoint_every", "checkpoint.every"),
    ("save_total_limit", "checkpoint.keep"),
    ("output_dir", "run.dir"),
    ("nproc_per_node", "run.workers"),
    ("world_size", "run.workers"),
    ("num_workers", "run.workers"),
    ("n_gpus", "run.workers"),
    ("dataset", "data.source"),
    ("tokenizer", "data.tokenizer"),
    ("dtype", "precision.compute"),
    ("mixed_precision", "precision.compute"),
    ("reduce_dtype", "precision.wire"),
    ("gradient_compression", "compress.method"),
    ("offload_optimizer", "offload.state"),
    ("train_on_inputs", "finetune.loss"),
    ("assistant_only_loss", "finetune.loss"),
    ("completion_only_loss", "finetune.loss"),
    ("dpo_beta", "finetune.beta"),
];

#[test]
fn a_name_of_another_framework_is_answered_with_the_key() {
    for (name, key) in KEYS {
        assert_eq!(
            error_of(&format!("{name}=2.5")),
            format!("{name} = 2.5 is not a known key; did you mean {key}?"),
        );
    }
}

#[test]
fn case_dashes_and_the_table_in_front_do_not_matter() {
    for (name, key) in KEYS.iter().filter(|(name, _)| !name.contains('.')) {
        let table = key.split('.').next().unwrap();
        for spelling in [name.to_uppercase(), name.replace('_', "-"), format!("{table}.{name}")] {
            if spelling == *key {
                continue;
            }
            let error = error_of(&format!("{spelling}=2.5"));
            assert!(error.ends_with(&format!("did you mean {key}?")), "{error}");
        }
    }
    let file = Some(("a.toml".to_owned(), "[parallel]\ntp = 2\n[training]\nseq_len = 8".into()));
    assert_eq!(
        resolve(&Sources { file, ..Sources::default() }).unwrap_err().to_string(),
        "a.toml:2: parallel.tp = 2 is not a known key; did you mean parallel.tensor?\n\
         a.toml:4: training.seq_len = 8 is not a known key; did you mean model.context?"
    );
}

#[test]
fn a_name_that_is_a_setting_here_is_answered_with_it() {
    for (argument, fix) in [
        ("fsdp=true", "did you mean parallel.zero = 3?"),
        ("fsdp=shard_grad_op", "did you mean parallel.zero = 2?"),
        ("fsdp=\"full_shard auto_wrap\"", "did you mean parallel.zero = 3?"),
        ("fsdp=false", "did you mean parallel.zero = 0?"),
        (
            "packing=true",
            "did you mean data.documents = \"masked\" (text without a document mask is packed by \
             default)?",
        ),
        ("bf16=true", "did you mean precision.compute = \"bf16\"?"),
        ("bf16=false", "did you mean precision.compute = \"f32\"?"),
        ("fp16=1", "did you mean precision.compute = \"fp16\"?"),
        ("fp8=true", "did you mean precision.compute = \"fp8\"?"),
        ("dtype=float8", "did you mean precision.compute = \"fp8\"?"),
        ("dtype=bfloat16", "did you mean precision.compute = \"bf16\"?"),
        ("mixed_precision=no", "did you mean precision.compute = \"f32\"?"),
        ("optimizer=AdamW", "did you mean optim.name = \"adamw\"?"),
        ("optimizer=adam", "did you mean optim.name = \"adam\"?"),
        ("lr_scheduler_type=cosine", "did you mean optim.schedule = \"cosine\"?"),
        ("scheduler=WarmupDecayLR", "did you mean optim.schedule = \"linear\"?"),
        ("nesterov=true", "did you mean optim.name = \"nesterov\"?"),
        ("activation_checkpointing=true", "did you mean parallel.recompute = \"full\"?"),
        ("recompute_granularity=selective", "did you mean parallel.recompute = \"selective\"?"),
        ("diloco=true", "did you mean sync.mode = \"local-sgd\" with sync.outer = \"nesterov\"?"),
        ("use_distributed_optimizer=true", "did you mean parallel.zero = 1?"),
        ("betas=[0.9, 0.95]", "did you mean optim.beta1 with optim.beta2?"),
        ("min_lr=1e-5", "did you mean optim.final_lr_fraction (a fraction of optim.lr)?"),
        ("backend=nccl", "did you mean run.transport = \"auto\"?"),
        ("device=cuda", "did you mean run.device = \"cuda\"?"),
        ("device=cuda:1", "did you mean run.device = \"cuda:1\"?"),
        ("accelerator=gpu", "did you mean run.device = \"cuda\"?"),
        ("use_cpu=true", "did you mean run.device = \"cpu\"?"),
        ("no_cuda=false", "did you mean run.device?"),
        ("gpu=true", "did you mean run.device = \"cuda\"?"),
        ("num_train_epochs=3", "did you mean train.epochs?"),
        (
            "gradient_accumulation_steps=4",
            "did you mean train.batch (accumulation follows as \
             train.batch / (train.microbatch x parallel.data))?",
        ),
    ] {
        let error = error_of(argument);
        assert!(error.ends_with(&format!(" is not a known key; {fix}")), "{error}");
    }
    assert!(error_of("grad_accum=4").contains("did you mean train.batch"));
}

#[test]
fn a_name_without_a_counterpart_is_answered_with_an_alternative() {
    for (argument, message) in [
        (
            "cp=2",
            "cp = 2 is not a known key: context parallelism can be planned, not run; \
             use parallel.tensor with parallel.sequence=true to shard activations",
        ),
        (
            "ep=8",
            "ep = 8 is not a known key: mixture-of-experts models can be planned, not run; \
             use a dense model, with parallel.tensor or parallel.zero",
        ),
        (
            "local_rank=0",
            "local_rank = 0 is not a known key: the launcher gives each worker its rank; leave it \
             out; with run.device=cuda the workers of a host take its devices in turn",
        ),
        (
            "train_samples=300",
            "train_samples = 300 is not a known key: a run is measured in steps or epochs, not in \
             samples; use train.steps = samples / train.batch, or train.epochs",
        ),
        (
            "label_smoothing=0.1",
            "label_smoothing = 0.1 is not a known key: the loss is plain cross entropy; \
             leave it out",
        ),
    ] {
        assert_eq!(error_of(argument), message);
    }
}

#[test]
fn a_value_of_another_framework_is_answered_with_ours() {
    for (argument, fix) in [
        (
            "sync.mode=diloco",
            "is not one of all-reduce, local-sgd, federated, gossip, parameter-server, hogwild; \
             try sync.mode = \"local-sgd\" with sync.outer = \"nesterov\"",
        ),
        ("precision.compute=bfloat16", "is not one of f32, bf16, fp16, fp8; try \"bf16\""),
        ("precision.compute=float16", "is not one of f32, bf16, fp16, fp8; try \"fp16\""),
        ("optim.schedule=constant_with_warmup", "; try \"constant\""),
        ("optim.name=AdamW", "; try \"adamw\""),
        ("compress.method=topk", "; try \"top-k\""),
        ("parallel.zero=full_shard", "is text where an integer is needed; try 3"),
        ("parallel.recompute=true", "; try \"full\""),
        ("parallel.schedule=Interleaved1F1B", "; try \"interleaved\""),
        ("run.transport=nccl", "; try \"auto\""),
        ("data.format=sharegpt", "try data.format = \"chat\" with data.source = \"chat.jsonl\""),
        (
            "data.format=dpo",
            "try data.format = \"chat\" with data.source = \"pairs.jsonl\" with finetune.method = \
             \"dpo\"",
        ),
        (
            "finetune.method=sft",
            "try finetune.method = \"full\" with data.format = \"chat\" with data.source = \
             \"chat.jsonl\"",
        ),
        (
            "finetune.lora_targets=all",
            "try finetune.lora_targets = \"all-linear\" with finetune.lora_rank = 8",
        ),
    ] {
        let error = error_of(argument);
        assert!(error.ends_with(fix), "{error}");
    }
}

#[test]
fn a_value_given_to_a_table_is_moved_to_its_principal_key() {
    for (argument, fix) in [
        ("precision=bf16", "try precision.compute = \"bf16\""),
        ("precision=16-mixed", "try precision.compute = \"fp16\""),
        ("optim=AdamW", "try optim.name = \"adamw\""),
        ("sync=diloco", "try sync.mode = \"local-sgd\" with sync.outer = \"nesterov\""),
        ("model=gpt2", "try model.family = \"gpt2\""),
        ("data=books.txt", "try data.source = \"books.txt\""),
    ] {
        let (table, _) = argument.split_once('=').unwrap();
        let error = error_of(argument);
        assert!(error.starts_with(&format!("{table} = ")), "{error}");
        assert!(error.ends_with(&format!("where a table of keys is needed; {fix}")), "{error}");
    }
}

#[test]
fn a_misspelled_name_of_another_framework_is_recognised() {
    for (name, key) in [("learning_rat", "optim.lr"), ("hiden_size", "model.width")] {
        let error = error_of(&format!("{name}=2.5"));
        assert!(error.ends_with(&format!("did you mean {key}?")), "{error}");
    }
}
