//! What the library logs, on standard error.

use crate::stop::Stop;
use rondel::env::Env;
use std::io::{IsTerminal, stderr};
use tracing_subscriber::EnvFilter;

/// Starts logging by `RONDEL_LOG`; warnings by default.
pub(crate) fn start(env: &Env) -> Result<(), Stop> {
    let wish = env.log.as_deref().unwrap_or("warn");
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter(wish)?).with_writer(stderr);
    subscriber.with_ansi(stderr().is_terminal()).init();
    Ok(())
}

fn filter(wish: &str) -> Result<EnvFilter, Stop> {
    EnvFilter::try_new(wish).map_err(|e| {
        Stop::Usage(format!(
            "RONDEL_LOG={wish:?} is no filter ({e}): use error, warn, info, debug or trace, or a list such as \
             rondel=debug,info"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_and_lists() {
        assert!(filter("info").is_ok() && filter("rondel=debug,warn").is_ok());
        let error = filter("rondel=loud").unwrap_err().to_string();
        assert!(error.contains("\"rondel=loud\"") && error.contains("debug or trace"), "{error}");
    }
}
