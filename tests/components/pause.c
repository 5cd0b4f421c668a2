/* The process that holds a pod's namespaces: it waits, reaps what is left to it, and ends when asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void reap(int signal) {
  (void)signal;
  while (waitpid(-1, NULL, WNOHANG) > 0) {
  }
}

static void leave(int signal) {
  (void)signal;
  _exit(0);
}

int main(void) {
  sigaction(SIGCHLD, &(struct sigaction){.sa_handler = reap, .sa_flags = SA_NOCLDSTOP}, NULL);
  sigaction(SIGTERM, &(struct sigaction){.sa_handler = leave}, NULL);
  sigaction(SIGINT, &(struct sigaction){.sa_handler = leave}, NULL);
  for (;;) pause();
}
