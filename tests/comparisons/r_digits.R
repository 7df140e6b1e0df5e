# The digits of R for the table of tests/comparisons/test_r_digits.py, which writes it and names this command:
#
#     Rscript tests/comparisons/r_digits.R TABLE.csv > tests/comparisons/r_digits.json
#
# Packages of R 4.2: survival, MASS, nnet, sandwich, survey, lme4, splines, mice (Rubin's rules), jsonlite.
suppressMessages({library(survival); library(MASS); library(nnet); library(sandwich); library(survey); library(lme4)
  library(splines); library(mice); library(jsonlite)})
v <- read.csv(commandArgs(trailingOnly = TRUE)[1], stringsAsFactors = TRUE)
v$ill <- as.integer(v$ill == "yes")
new <- data.frame(age = c(50, 60), ward = factor(c("A", "B"), levels(v$ward)))
errors <- function(fit, covariance = vcov(fit)) list(estimate = as.list(coef(fit)),
                                                     error = as.list(sqrt(diag(covariance))))
tight <- glm.control(epsilon = 1e-14, maxit = 100)
out <- list()

fit <- glm(ill ~ age + ward, binomial, v, control = tight)
out$logistic <- c(errors(fit), loglik = c(logLik(fit)), aic = AIC(fit), deviance = deviance(fit))
for (kind in c("HC0", "HC1", "HC2", "HC3")) out[[kind]] <- errors(fit, vcovHC(fit, kind))
out$clustered <- errors(fit, vcovCL(fit, ~ hospital, type = "HC1"))
out$likelihood_test <- anova(update(fit, . ~ . - ward), fit, test = "LRT")[2, "Deviance"]
profiled <- suppressMessages(confint(profile(fit, maxsteps = 80, del = 0.05)))
out$profile <- as.list(profiled["age", ])
predicted <- predict(fit, new, se.fit = TRUE)
out$predict <- list(link = unname(predicted$fit), error = unname(predicted$se.fit))

out$counts <- errors(glm(ill ~ age, binomial, v, weights = count, control = tight))
out$survey <- errors(svyglm(ill ~ age, svydesign(~1, weights = ~w, data = v), family = quasibinomial, control = tight))
out$linear <- errors(lm(cost ~ age + ward, v))
out$poisson <- errors(glm(calls ~ age + offset(log(years)), poisson, v, control = tight))
out$quasi_poisson <- errors(glm(calls ~ age, quasipoisson, v, control = tight))
out$gamma <- errors(glm(cost ~ age, Gamma("log"), v, control = tight))
fit <- glm.nb(calls ~ age, v, control = glm.control(epsilon = 1e-14, maxit = 200))
out$negative_binomial <- list(estimate = as.list(coef(fit)), alpha = 1 / fit$theta, loglik = c(logLik(fit)))
fit <- multinom(grade ~ age, v, trace = FALSE, reltol = 1e-16, abstol = 1e-16, maxit = 1000)
out$multinomial <- list(estimate = coef(fit), error = summary(fit)$standard.errors, loglik = c(logLik(fit)))
fit <- polr(factor(grade) ~ age, v, Hess = TRUE, control = list(reltol = 1e-16, maxit = 1000))
out$ordinal <- list(slope = coef(fit)[["age"]], thresholds = unname(fit$zeta), loglik = c(logLik(fit)))

bounds <- c(10, 90)
for (name in c("ns", "bs", "poly")) {
  basis <- switch(name, ns = quote(ns(age, knots = c(40, 60), Boundary.knots = bounds)),
                  bs = quote(bs(age, knots = 50, Boundary.knots = bounds)), poly = quote(poly(age, 2)))
  fit <- glm(as.formula(bquote(ill ~ .(basis))), binomial, v, control = tight)
  predicted <- predict(fit, new, se.fit = TRUE)
  out[[name]] <- list(deviance = deviance(fit), link = unname(predicted$fit), error = unname(predicted$se.fit))
}

precise <- coxph.control(eps = 1e-14, toler.chol = 1e-14, iter.max = 50)
fit <- coxph(Surv(days, died) ~ age + strata(hospital), v, control = precise)
out$cox <- c(errors(fit), loglik = fit$loglik[2])
curves <- survfit(fit, newdata = data.frame(age = 50, hospital = "Bonn"), ctype = 1)  # Breslow's hazard, as here
out$cox_survival <- summary(curves, times = c(100, 300))$surv
fit <- coxph(Surv(days, died) ~ age + strata(hospital), v, weights = w, robust = TRUE, control = precise)
out$cox_weighted <- errors(fit)
fit <- coxph(Surv(start, days, died) ~ age + strata(hospital, ward), v, ties = "breslow", control = precise)
out$cox_entry <- c(errors(fit), loglik = fit$loglik[2])
curves <- summary(survfit(Surv(days, died) ~ 1, v, conf.type = "log-log"), times = 300)
out$kaplan_meier <- list(survival = curves$surv, low = curves$lower, high = curves$upper)
out$log_rank <- survdiff(Surv(days, died) ~ ward + strata(hospital), v)$chisq

exact <- function(...) list(optimizer = "bobyqa", optCtrl = list(rhoend = 1e-12, maxfun = 1e5))
fit <- glmer(relapse ~ age + (1 | centre), v, binomial, control = do.call(glmerControl, c(exact(), tolPwrss = 1e-14)))
out$random_logistic <- list(estimate = as.list(fixef(fit)), tau = sqrt(VarCorr(fit)$centre[1]), loglik = c(logLik(fit)))
fit <- lmer(score ~ age + (1 | centre), v, REML = FALSE, control = do.call(lmerControl, exact()))
out$random_linear <- list(estimate = as.list(fixef(fit)), tau = sqrt(VarCorr(fit)$centre[1]), loglik = c(logLik(fit)),
                          error = as.list(sqrt(diag(as.matrix(vcov(fit))))))

rubin <- pool.scalar(c(1.0, 1.3, 0.8, 1.1), c(0.20, 0.25, 0.22, 0.18), n = 120, k = 3)
out$rubin <- rubin[c("qbar", "ubar", "b", "t", "df")]
cat(toJSON(out, digits = NA, auto_unbox = TRUE, pretty = 1), "\n")
