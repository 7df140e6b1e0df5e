# R's mice on the tables of imputation.py: the sites one by one, as here, then glm on all rows and Rubin's rules.
#
#     Rscript benchmarks/imputation_mice.R FOLDER        # reads FOLDER/*.csv, writes FOLDER/mice.csv
suppressMessages(library(mice))
folder <- commandArgs(trailingOnly = TRUE)[1]
files <- list.files(folder, pattern = "^[0-9]+\\.csv$", full.names = TRUE)
rows <- lapply(files, function(file) {
  table <- read.csv(file, na.strings = "", stringsAsFactors = TRUE)
  number <- as.integer(sub("\\.csv$", "", basename(file)))
  of_sites <- lapply(split(table[, c("age", "dose", "ward", "y")], table$site), function(site)
    mice(site, m = 5, maxit = 5, printFlag = FALSE, seed = number + 1))
  joined <- Reduce(rbind, of_sites)
  pooled <- summary(pool(with(joined, glm(y ~ age + dose + ward, family = binomial))), conf.int = TRUE)
  data.frame(table = number, term = sub("wardB", "ward[T.B]", pooled$term, fixed = TRUE), estimate = pooled$estimate,
             low = pooled[["2.5 %"]], high = pooled[["97.5 %"]])
})
write.csv(do.call(rbind, rows), file.path(folder, "mice.csv"), row.names = FALSE)
cat(R.version.string, "mice", as.character(packageVersion("mice")), "\n")
